"""`/plans/{id}`: page of a plan, data of its charts, downloads."""
