# Runs in the booted machine: installs Bywire, adds services by the commands of docs/sockets.md, uses each by a carried client,
# removes them, and adds units that cannot work. Each line of its output begins with a word that the test looks for.
set -u
here=/run/test
cd "$here"
mkdir -p /usr/local/bin /usr/local/lib/bywire /usr/local/lib/systemd/system
cp bywire /usr/local/bin/
cp libbywire_sockets.so /usr/local/lib/bywire/
cp bywire-pairing.socket bywire-pairing.service /usr/local/lib/systemd/system/
# Its tests are of the fabric, and no password is at stake.
sed -i 's/scram-sha-256/trust/' /etc/postgresql/15/main/pg_hba.conf
for name in refuses silent slow filtered; do cp "$name.service" /etc/systemd/system/; done
ln -s /dev/null /etc/systemd/system/hidden.service
systemctl daemon-reload
systemctl start redis-server nginx postgresql@15-main

carried() { bywire status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["carried_ever"])'; }
doctor() {
    bywire doctor --json | python3 -c 'import json, sys
print(*(f["found"] for f in json.load(sys.stdin)["findings"] if f["name"] == "carried services"))'
}

redis_client() { bywire run -- redis-benchmark -q -c 5 -n 2000 -t get; }
nginx_client() {
    bywire run -- python3 -c 'import http.client, time
connection = http.client.HTTPConnection("127.0.0.1", 80)
for _ in range(60):
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.read()
    time.sleep(0.01)'
}
postgresql_client() {
    echo 'SELECT 1;' >/tmp/select
    bywire run -- /usr/lib/postgresql/15/bin/pgbench -n -f /tmp/select -c 2 -t 500 -h 127.0.0.1 -U postgres postgres
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

use() {
    before=$(carried)
    "$2_client" >client 2>&1 || sed 's/^/  /' client
    echo "used $1 $(systemctl is-active "$1") $(($(carried) - before))"
}

state() { echo "state $1 $(systemctl is-active "$1") $(ls "/etc/systemd/system/$1.service.d" 2>/dev/null | tr '\n' ' ')"; }

sed '/^bywire service check/,$d' commands >first
sed -n '/^bywire service check/,$p' commands >rest
run first
for time in added restarted; do
    for pair in redis-server:redis nginx:nginx postgresql@15-main:postgresql; do
        use "${pair%%:*}" "${pair#*:}"
    done
    echo "doctor $(doctor)"
    [ "$time" = restarted ] || systemctl restart redis-server nginx postgresql@15-main
done
run rest
use redis-server redis
state redis-server
[ ! -e /run/bywire-redis-server ] || echo "left /run/bywire-redis-server"

cat >more <<'END'
bywire service remove postgresql@15-main --restart
bywire service remove nginx --restart
bywire service add hidden
bywire service add no-such-service
bywire service add redis
bywire service remove redis --restart
bywire service add postgresql
bywire service add postgresql@
bywire service add redis-server.socket
setpriv --reuid 65534 --regid 65534 --clear-groups bywire service add nginx
systemctl start refuses silent slow
bywire service add refuses --restart
bywire service add silent --restart
timeout --preserve-status --signal INT 4 bywire service add slow --restart
systemctl start filtered
cat filtered.errors
mount -t tmpfs -o noexec tmpfs /mnt
cp libbywire_sockets.so /mnt
bywire run --library /mnt/libbywire_sockets.so -- true
END
run more
for unit in nginx redis-server refuses silent slow; do state "$unit"; done

# A launcher that clears the environment, wrapped by hand: the doctor names it, and nothing is written over it.
mkdir -p /etc/systemd/system/postgresql@15-main.service.d
cat >/etc/systemd/system/postgresql@15-main.service.d/override.conf <<'END'
[Service]
ExecStart=
ExecStart=/usr/local/bin/bywire run -- /usr/bin/pg_ctlcluster --skip-systemctl-redirect %i start
END
systemctl daemon-reload
systemctl restart postgresql@15-main
echo "doctor $(doctor)"
echo 'bywire service add postgresql@15-main --restart' >last
run last
use postgresql@15-main postgresql
