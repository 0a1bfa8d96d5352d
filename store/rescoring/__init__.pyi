from store.rescoring.attempt_record import AttemptRecord as AttemptRecord
from store.rescoring.report import RescoreReport as RescoreReport
from store.rescoring.rescore import rescore as rescore
