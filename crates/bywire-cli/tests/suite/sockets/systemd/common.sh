# Sourced by the scripts that run in the booted machine: installs Bywire, and defines what they share.
set -u
cd /run/test
mkdir -p /usr/local/bin /usr/local/lib/bywire /usr/local/lib/systemd/system
cp bywire /usr/local/bin/
cp libbywire_sockets.so /usr/local/lib/bywire/
cp bywire-pairing.socket bywire-pairing.service /usr/local/lib/systemd/system/
# Its tests are of the fabric, and no password is at stake.
sed -i 's/scram-sha-256/trust/' /etc/postgresql/15/main/pg_hba.conf
systemctl daemon-reload

carried() { bywire status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["carried_ever"])'; }

client() { timeout 60 bywire run -- python3 clients.py "$@"; }

pgbench_client() {
    echo 'SELECT 1;' >/tmp/select
    bywire run -- /usr/lib/postgresql/15/bin/pgbench -n -f /tmp/select -c 2 -t 500 -h 127.0.0.1 -p "$1" -U postgres postgres
}

# Runs each line of a file, and prints its status and its output.
run() {
    while read -r line; do
        status=0
        sh -c "$line" >out 2>&1 </dev/null || status=$?
        echo "ran $status $line"
        sed 's/^/  /' out
    done <"$1"
}

# Uses a service by its client, and prints its state and how many connections were carried meanwhile.
use() {
    before=$(carried)
    "$2_client" >client 2>&1 || { echo "failed $1"; sed 's/^/  /' client; }
    echo "used $1 $(systemctl is-active "$1") $(($(carried) - before))"
}

state() { echo "state $1 $(systemctl is-active "$1") $(ls "/etc/systemd/system/$1.service.d" 2>/dev/null | tr '\n' ' ')"; }
