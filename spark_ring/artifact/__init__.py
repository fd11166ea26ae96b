"""A fitted model as a value and as a folder of files; no Spark, and no framework until one is needed.

::

    <path>/metadata/part-00000     Spark ML's JSON metadata, ours under "sparkRing"; written last
    <path>/contract.json           which columns become which tensors
    <path>/history.json            one record per epoch
    <path>/summary.json            how the fit went
    <path>/weights.safetensors     the weights; safe to read
    <path>/module.json             torch: the architecture as a recipe of torch.nn classes; safe to read
    <path>/module.pkl              torch: the architecture as pickled code, when there is no such recipe

Every file's length and SHA-256 stand in the metadata and are checked before the file is used. That finds
damage, not malice: who can change a file can change the metadata. Code is therefore run only for whoever says
that the artifact is trusted (:mod:`.trust`).
"""

from __future__ import annotations

from spark_ring.artifact.fitted import FittedModel, OutputSpec, load_model
from spark_ring.artifact.summary import FitSummary
from spark_ring.artifact.trust import trusted_artifacts

__all__ = ["FitSummary", "FittedModel", "OutputSpec", "load_model", "trusted_artifacts"]
