"""Commands of the command line. Each module has ``add_arguments(parser)`` and ``run(arguments)``; `tiledsl.__main__`
lists them, with those that are beside what they do."""
