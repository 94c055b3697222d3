# Redis with the command bywire: an image of a program whose connections are carried. A program of yours takes its place.
FROM bywire
RUN apt-get update && apt-get install -y --no-install-recommends redis-server redis-tools && rm -rf /var/lib/apt/lists/*
# A volume that is mounted there belongs to the user of the programs, or to root, and everybody may write into it, as Kubernetes has it.
# The first program makes a directory in it for its user alone.
RUN install -d -o redis -g redis /run/shared
USER redis
WORKDIR /tmp
ENV BYWIRE_RUNTIME_DIR=/run/shared/bywire
CMD ["bywire", "run", "--", "redis-server", "--save", ""]
