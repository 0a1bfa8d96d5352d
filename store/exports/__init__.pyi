from store.exports.databases.postgres_schema import export_postgres as export_postgres
from store.exports.databases.report import DatabaseReport as DatabaseReport
from store.exports.databases.sqlite_file import export_sqlite as export_sqlite
from store.exports.databases.statement import SQLResult as SQLResult, query_sql as query_sql
from store.exports.exporting import ExportReport as ExportReport, export_store as export_store
from store.exports.frames import to_arrow as to_arrow, to_pandas as to_pandas, to_polars as to_polars
from store.exports.otlp.collector import CollectorOptions as CollectorOptions
from store.exports.otlp.sending import (
    SendReport as SendReport,
    forward_spans as forward_spans,
    send_spans as send_spans,
)
from store.exports.schema import SCHEMA_VERSION as SCHEMA_VERSION
from store.exports.splits import SplitField as SplitField
