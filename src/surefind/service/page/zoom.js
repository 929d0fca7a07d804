// A picture as large as the window, until a click or a key.
import { $, make } from "./dom.js";

// A button around a picture that enlarges it.
export function zoomable(picture, words) {
  return make("button", { type: "button", class: "zoomable", "aria-label": `Enlarge ${words}`, onclick: (event) => enlarge(event.currentTarget.querySelector("img"), words) }, picture);
}

function enlarge(image, words) {
  if (!image) return;
  const dialog = $("zoom");
  const large = make("img", { src: image.src, alt: words, class: image.classList.contains("tiny") ? "tiny" : "" });
  dialog.replaceChildren(make("button", { type: "button", class: "plain", "aria-label": "Close" }, large));
  dialog.onclick = () => dialog.close();
  dialog.showModal();
}
