from scimult.inference import Ensemble as Ensemble
from scimult.inference import SciMult as SciMult
from scimult.library import Library as Library

__version__: str
