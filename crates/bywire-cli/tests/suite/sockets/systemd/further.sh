# Runs in the booted machine: installs packages of further services, adds each service, uses it by a carried client before and
# after a reload and an upgrade, and removes it.
cd /run/test
. ./common
export DEBIAN_FRONTEND=noninteractive
# The order of the packages is not that of their dependencies, so some are configured in a further pass only.
for _ in 1 2 3; do
    dpkg --install packages/*.deb >out 2>&1 </dev/null
    installed=$?
    [ $installed != 0 ] || break
done
echo "installed $installed"
[ $installed = 0 ] || { sed 's/^/  /' out; exit; }

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
    server apache 127.0.0.1:80
END
cat >/etc/pgbouncer/pgbouncer.ini <<'END'
[databases]
postgres = host=127.0.0.1 port=5432 user=postgres
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
systemctl start postgresql@15-main mariadb $(cat units)
mariadb -e "CREATE USER tester@'%' IDENTIFIED BY 'word'; GRANT ALL ON *.* TO tester@'%'"

apache2_client() { client http 80; }
haproxy_client() { client http 8090; }
memcached_client() { client memcached 11211; }
mariadb_client() {
    bywire run -- mysqlslap -h 127.0.0.1 -u tester -pword --auto-generate-sql --number-of-queries=1000 --concurrency=2
}
php_client() { client fastcgi 9000; }
pgbouncer_client() { pgbench_client 6432; }
rabbitmq_client() { client amqp 5672; }

for unit in $(cat units); do
    name=${unit%-server} name=${name%%[0-9]*}
    [ "$unit" != apache2 ] || name=apache2
    echo "bywire service add $unit --restart" >command
    run command
    use "$unit" "$name"
    if [ "$(systemctl show --property CanReload --value "$unit")" = yes ]; then
        systemctl reload "$unit" || echo "failed reload of $unit"
    else
        systemctl restart "$unit" || echo "failed restart of $unit"
    fi
    use "$unit" "$name"
    echo "bywire service check $unit" >command
    run command
done

echo 'bywire service add php-fpm' >command
run command

# As an upgrade does, the package's scripts restart the service.
rm -f /usr/sbin/policy-rc.d
dpkg --install packages/haproxy_*.deb packages/memcached_*.deb >out 2>&1 </dev/null
echo "upgraded $?"
use haproxy haproxy
use memcached memcached

for unit in $(cat units); do
    echo "bywire service remove $unit --restart" >command
    run command
    state "$unit"
done
use apache2 apache2
ls -d /run/bywire-*/ | sed 's/^/left /'
