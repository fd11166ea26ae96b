"""Start ranks as processes: ``spark_ring.run`` for functions, the command ``spark-ring`` for scripts."""
