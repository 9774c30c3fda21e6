"""Runs inside Alembic, on the connection and in the transaction that `app.store.schema.migrate` opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
