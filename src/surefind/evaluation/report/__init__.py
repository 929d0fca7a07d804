"""The report of a benchmark: a self-contained page, and its tables as Markdown, from result files.

    results = read_results(folder)
    write_report(results, Path("report.html"), Path("report.md"), artifacts=work, published=PAPER)

Tables and curves come from the result files alone. Images and embeddings are artifacts of the benchmark,
which are not committed with the results: a page made without them leaves those sections out.
"""
