# Redis with the command bywire: an image of a program whose connections are carried. A program of yours takes its place.
FROM bywire
RUN apt-get update && apt-get install -y --no-install-recommends redis-server redis-tools && rm -rf /var/lib/apt/lists/*
# A volume that is mounted there belongs to the user of the programs.
RUN install -d -o redis -g redis /run/shared
USER redis
WORKDIR /tmp
ENV BYWIRE_RUNTIME_DIR=/run/shared
CMD ["bywire", "run", "--", "redis-server", "--save", ""]
