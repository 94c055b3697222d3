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
began=$(date +%s)

carried() { bywire status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["carried_ever"])'; }

client() { timeout 60 bywire run -- python3 /run/test/clients.py "$@"; }

redis_client() { timeout 60 bywire run -- redis-benchmark -q -c 5 -n 2000 -t get; }
nginx_client() { client http 80; }

pgbench_client() {
    echo 'SELECT 1;' >select
    timeout 60 bywire run -- /usr/lib/postgresql/15/bin/pgbench -n -f select -c 2 -t 500 -h 127.0.0.1 -p "$1" -U postgres postgres
}

# Runs each line of a file, and prints its status and its output.
run() {
    while read -r line; do
        status=0
        sh -c "$line" >out 2>&1 </dev/null || status=$?
        printf 'ran %s %s\n' "$status" "$line"
        sed 's/^/  /' out
    done <"$1"
}

# Runs all lines at once, each in a directory of its own. The outputs come in the order of the lines.
run_at_once() {
    count=100
    while read -r line; do
        count=$((count + 1))
        mkdir -p "at/$count"
        (cd "at/$count" && printf '%s\n' "$line" >command && run command >said) &
    done <"$1"
    wait
    cat at/*/said
    rm -r at
}

state() {
    files=$(ls "/etc/systemd/system/$1.service.d" 2>/dev/null | tr '\n' ' ')
    printf 'state %s %s %s\n' "$1" "$(systemctl is-active "$1")" "$files"
}

# For those who read the output: the seconds since the machine has begun.
time_of() { echo "time $(($(date +%s) - began)) $1"; }
