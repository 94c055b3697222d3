# Redis with the command bywire: an image of a program whose connections are carried. A program of yours takes its place.
FROM bywire
RUN apt-get update && apt-get install -y --no-install-recommends redis-server redis-tools && rm -rf /var/lib/apt/lists/*
# Programs of one user share a directory in the volume that is mounted there. The first one makes it: an emptyDir of Kubernetes, which
# everybody may write into, is refused itself.
RUN install -d -m 1777 /run/shared
USER redis
WORKDIR /tmp
ENV BYWIRE_RUNTIME_DIR=/run/shared/bywire
CMD ["bywire", "run", "--", "redis-server", "--save", ""]
