"""What must be said in words beside the tables: sizes, seeds, versions, and what the marks mean."""

from surefind.evaluation.report.tables import LEVEL, SEEDS_TO_TEST, Table, free_wins
from surefind.evaluation.report.vocabulary import set_title
from surefind.evaluation.results import ResultSet

KAPPA = (
    "κ (kappa) is how sure an embedding is: the concentration of its distribution on the sphere. High: the "
    "input belongs where it was put. Low: it could be almost anywhere. The uncertainty of an input is 1/κ."
)
RANGE = (
    "the small range is the 95 % bootstrap interval over queries, which does not cover what another "
    "training run would change."
)
KNOWN_STRANGE = (
    "Known (ID, in-distribution) inputs are new examples of the kind the model learnt. Strange (OOD, "
    "out-of-distribution) inputs come from another data set: a good uncertainty is high for them."
)


def data_note(results: ResultSet) -> str:
    """Say what was measured on how much.

    Args:
        results: All cells of a data set.

    Returns:
        One or two sentences.
    """
    cell = results.cells[0]
    count = {part: f"{n:,}" for part, n in cell.examples.items()}
    text = f"Trained on {count.get('train', '?')} and tested on {count.get('test', '?')} examples."
    if cell.ood and cell.ood[0]:
        part = f" (part {', '.join(cell.ood[1:])})" if len(cell.ood) > 1 else ""
        text += f" Strange inputs: {count.get('ood', '?')} of {set_title(cell.ood[0])}{part}."
    left_out = max(c.left_out for c in results.cells)
    if left_out:
        text += f" {left_out:,} queries without a match in the gallery are left out of retrieval."
    return text


def version_warning(results: ResultSet) -> str:
    """Say that cells were made by different versions.

    Args:
        results: All cells of a data set.

    Returns:
        A sentence, empty if there is one version only.
    """
    if len(results.versions) < 2:
        return ""
    parts = (
        f"{version} made {len(files)} ({', '.join(files[:3])}{', …' if len(files) > 3 else ''})"
        for version, files in results.versions.items()
    )
    return (
        f"These numbers come from different versions of surefind and may not compare: "
        f"{'; '.join(parts)}. Delete the older cells and run the benchmark again to be sure."
    )


def table_notes(table: Table) -> list[str]:
    """Say what the marks of a table mean, and what they rest on.

    Args:
        table: A table with ranks.

    Returns:
        Sentences.
    """
    notes = []
    counts = {line.seeds for line in table.lines}
    if counts == {"1"}:
        notes.append(f"Each row has one seed, so there is no ±; {RANGE}")
    else:
        notes.append("Mean ± standard deviation over seeds.")
    if len(counts) > 1:
        notes.append(
            "Rows have different seeds (see that column), so their means compare less well; best and "
            "second best go by the seeds that all ranked rows have."
        )
        if "1" in counts:
            notes.append(f"Where a row has one seed, {RANGE}")
    if table.bases:
        notes.append(_significance(table.bases))
    if table.untested:
        names = ", ".join(m.title for m in table.metrics if m.name in table.untested)
        notes.append(
            f"Not tested against the best, for want of seeds and intervals: {names}. "
            "A small gap there may be chance."
        )
    if any(e is not None and e.untested for line in table.lines for e in line.entries):
        notes.append("? — this row could not be tested against the best.")
    wins = free_wins(table)
    if wins:
        notes.append(f"A free baseline is best at: {', '.join(wins)}.")
    if any(line.kind == "free" for line in table.lines):
        notes.append(
            "Free baselines retrieve with the deterministic row's embeddings, so their retrieval numbers "
            "are not ranked."
        )
    return notes


def _significance(bases: frozenset[str]) -> str:
    rules = {
        "seeds": f"a paired t-test over the common seeds ({SEEDS_TO_TEST} or more) gives p ≥ {LEVEL} "
        "(few seeds show large gaps only)",
        "intervals": f"with fewer than {SEEDS_TO_TEST} common seeds, the 95 % bootstrap intervals overlap",
    }
    said = "; or, ".join(rules[b] for b in ("seeds", "intervals") if b in bases)
    return f"≈ means not told apart from the best: {said}. No correction for the number of comparisons."
