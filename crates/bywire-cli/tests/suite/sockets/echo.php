<?php
// A client by streams, and by the functions of the sockets extension on the same descriptors. It checks every
// byte that comes back. Its argument is the server's port.
function fail(string $what): never {
    echo "$what\n";
    exit(1);
}

for ($seed = 1; $seed <= 4; $seed++) {
    $stream = stream_socket_client("tcp://127.0.0.1:{$argv[1]}") ?: fail('connect');
    stream_set_read_buffer($stream, 0);
    $socket = socket_import_stream($stream) ?: fail('import');
    for ($turn = 0; $turn < 400; $turn++) {
        $due = random_bytes(1 + $turn * 7919 * $seed % 4000);
        $sent = $turn % 2 ? fwrite($stream, $due) : socket_write($socket, $due);
        $sent === strlen($due) || fail('send');
        for ($got = ''; strlen($got) < strlen($due);) {
            $ready = [$stream];
            $none = null;
            if ($turn % 5 === 0 && stream_select($ready, $none, $none, 20) !== 1) {
                fail('select');
            }
            $part = $turn % 3 ? fread($stream, 4000) : socket_read($socket, 4000);
            is_string($part) && $part !== '' || fail('an early end');
            $got .= $part;
        }
        $got === $due || fail('other bytes came back');
        // The service that pairs the two ends needs a moment.
        $turn % 16 === 0 && usleep(10000);
    }
    fclose($stream);
}
echo "fine\n";
