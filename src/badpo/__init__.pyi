from badpo import attributes as attributes
from badpo.auditing.audit import audit as audit
from badpo.auditing.result import AuditResult as AuditResult
from badpo.auditing.watch import AuditMonitor as AuditMonitor
from badpo.data.judgments import Judgments as Judgments
from badpo.data.problems import ConfigError as ConfigError
from badpo.data.problems import DataError as DataError
from badpo.objective.bias import BiasTerm as BiasTerm
from badpo.training.config import BADPOConfig as BADPOConfig
from badpo.training.trainer import BADPOTrainer as BADPOTrainer

__version__: str
