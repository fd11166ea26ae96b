"""From a materialized dataset to batches of NumPy arrays.

``schema`` the column contract · ``store`` where files live · ``manifest`` what a dataset holds ·
``shards`` which rank reads which row when (pure arithmetic) · ``arrow`` Arrow arrays to NumPy ·
``decode`` row groups to NumPy · ``pipeline`` the reading threads of one epoch · ``parquet`` the reader ·
``batch`` what it yields. No framework and no Spark here.
"""
