"""The main job on real data: ``python -m spark_ring.demo``."""
