-- The role that Grafana reads with: the views of its panels, and nothing of keys and sessions. May run again.
\getenv password VIEWER_PASSWORD
SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'viewer') AS is_missing \gset
\if :is_missing
CREATE ROLE viewer LOGIN;
\endif
ALTER ROLE viewer PASSWORD :'password';
ALTER ROLE viewer SET default_transaction_read_only = on;
GRANT USAGE ON SCHEMA public TO viewer;
GRANT SELECT ON savings_by_model, savings_by_day, savings_by_budget, savings_by_planner TO viewer;
