<?php
// Answers with a digest of what an echo server said to this request's bytes, and with a text of the wanted length.
$socket = socket_create(AF_INET, SOCK_STREAM, SOL_TCP);
socket_connect($socket, '127.0.0.1', (int) getenv('ECHO_PORT')) || exit('no echo server');
$digest = '';
for ($turn = 0; $turn < 30; $turn++) {
    $due = substr(str_repeat(md5($_GET['seed'] . $turn), 200), 0, 1 + $turn * 211);
    for ($sent = 0; $sent < strlen($due); $sent += $part) {
        $part = socket_write($socket, substr($due, $sent)) ?: exit('nothing was sent');
    }
    for ($got = ''; strlen($got) < strlen($due); $got .= $part) {
        $part = socket_read($socket, 8192);
        if ($part === false || $part === '') {
            exit('an early end');
        }
    }
    if ($got !== $due) {
        exit('other bytes came back');
    }
    $digest = md5($digest . $got);
}
socket_close($socket);
echo $digest, "\n", str_repeat($digest, (int) $_GET['length']);
