# Runs in the booted machine: installs the packages of services. Then all services at once are added, used by carried clients,
# reloaded, restarted, upgraded with their packages, and removed. The output of each service follows that of the one before.
cd /run/test
. ./setup
export DEBIAN_FRONTEND=noninteractive
# Nobody reads manuals in a machine that is thrown away.
ln -sf /bin/true /usr/bin/mandb
install_packages() {
    dpkg --force-unsafe-io --force-confold --path-exclude='/usr/share/man/*' --path-exclude='/usr/share/doc/*' --install "$@" \
        >out 2>&1 </dev/null
}

later=
first=
for package in packages/*.deb; do
    case $package in
    # These services are on the machine already.
    */redis-server_* | */nginx_* | */postgresql-* | */libpq*) later="$later $package" ;;
    */apache2_* | */haproxy_* | */memcached_* | */mariadb-server_* | */php8.2-fpm_* | */pgbouncer_* | */rabbitmq-server_*)
        later="$later $package"
        first="$first $package"
        ;;
    *) first="$first $package" ;;
    esac
done
# What others need before they are unpacked.
install_packages packages/libsigsegv2_* packages/mysql-common_* packages/mariadb-common_*
# The order of the packages is not that of their dependencies, so some may be configured in a further pass only.
for _ in 1 2 3; do
    install_packages $first
    installed=$?
    [ $installed != 0 ] || break
done
echo "installed $installed"
[ $installed = 0 ] || { sed 's/^/  /' out; exit; }
time_of installed

# RabbitMQ looks up the name of the machine.
echo "127.0.0.1 $(hostname)" >>/etc/hosts
sed -i 's/\b80\b/8080/' /etc/apache2/ports.conf /etc/apache2/sites-available/000-default.conf
# What HAProxy and PgBouncer connect to is not carried, so that the counts of both are those of their clients.
mkdir page && echo page >page/index.html
systemd-run --quiet python3 -m http.server 8099 --bind 127.0.0.1 --directory /run/test/page
cat >/etc/haproxy/haproxy.cfg <<'END'
global
    user haproxy
    group haproxy
    chroot /var/lib/haproxy
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend outside
    bind 127.0.0.1:8090
    default_backend inside
backend inside
    server plain 127.0.0.1:8099
END
cat >/etc/pgbouncer/pgbouncer.ini <<'END'
[databases]
postgres = host=/var/run/postgresql port=5432 user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = 6432
auth_type = any
logfile = /var/log/postgresql/pgbouncer.log
pidfile = /var/run/postgresql/pgbouncer.pid
unix_socket_dir = /var/run/postgresql
END
chown postgres /etc/pgbouncer/pgbouncer.ini
sed -i 's/^listen = .*/listen = 127.0.0.1:9000/' /etc/php/*/fpm/pool.d/www.conf
printf '<?php echo "page";' >/tmp/page.php
systemctl daemon-reload
systemctl enable --quiet --now bywire-pairing.socket
systemctl start $(cat units)
mariadb -e "CREATE USER tester@'%' IDENTIFIED BY 'word'; GRANT ALL ON *.* TO tester@'%'"
time_of started

apache_client() { client http 8080; }
haproxy_client() { client http 8090; }
memcached_client() { client memcached 11211; }
mariadb_client() {
    timeout 60 bywire run -- mysqlslap -h 127.0.0.1 -u tester -pword --auto-generate-sql --number-of-queries=1000 --concurrency=2
}
php_client() { client fastcgi 9000; }
pgbouncer_client() { pgbench_client 6432; }
rabbitmq_client() { client amqp 5672; }
# Each connection has a process of its own, which the account names as long as it lives.
postgresql_client() {
    for _ in $(seq 200); do echo 'SELECT 1;'; done >queries
    echo '\! env -u LD_PRELOAD bywire service check postgresql@15-main --json >after' >>queries
    timeout 60 bywire run -- psql -q -f queries -h 127.0.0.1 -U postgres postgres
}

account() { bywire service check "$1" --json; }

# The connections that the processes of a unit have carried between two accounts.
carried_between() {
    python3 -c 'import json, sys
before, after = ({p["pid"]: p["carried_ever"] for unit in json.load(open(name))["units"] for p in unit["processes"]}
    for name in sys.argv[1:])
print(sum(count - before.get(pid, 0) for pid, count in after.items()))' "$@"
}

# Uses a service by its client. The account of its own processes tells how many connections were carried meanwhile. One that the
# pairing service has not answered in time, on a busy machine, stays TCP, so a client that has none tries again.
use() {
    for _ in 1 2 3 4 5; do
        account "$1" >before
        rm -f after
        "$(name "$1")_client" >client 2>&1 || { echo "failed $1"; sed 's/^/  /' client; }
        [ -e after ] || account "$1" >after
        count=$(carried_between before after)
        [ "$count" = 0 ] || break
    done
    echo "used $1 $(systemctl is-active "$1") $count"
}

name() { echo "${1%%[-@0-9]*}"; }

# Calls a function for all units at once, each in a directory of its own.
for_all() {
    for unit in $(cat /run/test/units); do
        (mkdir -p "/run/test/of/$unit" && cd "/run/test/of/$unit" && "$1" "$unit" >>said 2>&1) &
    done
    wait
    time_of "$1"
}

command_of() {
    echo "$1" >command
    run command
}

add() {
    # PgBouncer's server restarts meanwhile.
    [ "$1" != pgbouncer ] || until [ -e ../postgresql@15-main/added ]; do sleep 0.2; done
    command_of "bywire service add $1 --restart"
    use "$1"
    if [ "$(systemctl show --property CanReload --value "$1")" = yes ]; then
        systemctl reload "$1" || echo "failed reload of $1"
        use "$1"
    fi
    systemctl restart "$1" || echo "failed restart of $1"
    use "$1"
    command_of "bywire service check $1"
    : >added
}

use_upgraded() { use "$1"; }

remove() {
    command_of "bywire service remove $1 --restart"
    state "$1"
}

use_plain() { "$(name "$1")_client" >client 2>&1 || { echo "failed $1"; sed 's/^/  /' client; }; }

for_all add
# The packages' scripts restart the services, as they do in an upgrade.
rm -f /usr/sbin/policy-rc.d
install_packages $later
upgraded=$?
echo "upgraded $upgraded"
[ $upgraded = 0 ] || sed 's/^/  /' out
time_of upgraded
for_all use_upgraded
for_all remove
# A client that checks services by itself finds none any more.
postgresql_client() { pgbench_client 5432; }
before=$(carried)
for_all use_plain
echo "plain $(($(carried) - before))"
echo 'bywire service add php-fpm' >command
run command
for unit in $(cat units); do cat "of/$unit/said"; done
ls -d /run/bywire-*/ /run/bywire.* 2>/dev/null | sed 's/^/left /'
