# The whole of remat in one image: `remat serve`, `remat worker`, `remat migrate`.
FROM python:3.11-slim AS made
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/remat
ENV PATH=/opt/remat/bin:$PATH
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY graph graph
COPY planner planner
COPY app app
COPY remat remat
RUN pip install -c constraints.txt .
# Loops for any processor of this kind: the image may run on another machine than the one that builds it.
ENV NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/kernels
RUN mkdir /kernels && cd / && python -m remat.planner.warm

FROM python:3.11-slim
ENV PATH=/opt/remat/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/tmp/kernels REMAT_DATA=/data OMP_NUM_THREADS=1
RUN useradd --uid 10001 --no-create-home remat && mkdir /data && chown 10001:10001 /data
COPY --from=made /opt/remat /opt/remat
COPY --from=made /kernels /opt/kernels
COPY deploy/start /usr/local/bin/start
USER 10001:10001
WORKDIR /tmp
VOLUME ["/data"]
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["start"]
CMD ["remat", "serve", "--host", "0.0.0.0"]
