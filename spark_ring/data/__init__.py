"""From a materialized dataset to batches of NumPy arrays; no framework and no Spark here.

Where data live: ``location`` (how a store may be written), ``store``, ``cleaning``.
What they are: ``schema`` (the column contract), ``manifest`` (the files), ``batch`` (what a rank gets).
Which rank reads which row when: ``shards``, pure arithmetic.
How they are read: ``arrow`` (Arrow to NumPy), ``decode`` (row groups), ``windows`` (shuffled in advance),
``channel``, ``pipeline`` (the threads of one epoch), ``parquet`` (the reader).
"""
