"""The report: everything that is known of one kernel, in one HTML file. `data.py` says what it holds, `collect.py` asks
the rest of the compiler for it, `page.py` writes it."""
