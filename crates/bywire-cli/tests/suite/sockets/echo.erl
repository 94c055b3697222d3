%% An echo server whose connections are served by schedulers that share epoll sets, or clients that check every byte.
-module(echo).
-export([main/1]).

main([]) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127,0,0,1}}, {backlog, 50}, {nodelay, true}]),
    {ok, Port} = inet:port(Listener),
    io:format("~b~n", [Port]),
    accept(Listener);
main([Port]) ->
    Seeds = lists:seq(1, 8),
    [spawn_monitor(fun() -> talk(list_to_integer(Port), Seed) end) || Seed <- Seeds],
    [receive {'DOWN', _, _, _, Reason} -> Reason =:= normal orelse halt(1) end || _ <- Seeds],
    io:format("fine~n").

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Pid = spawn(fun() -> receive go -> echo(Socket) end end),
    gen_tcp:controlling_process(Socket, Pid),
    Pid ! go,
    accept(Listener).

%% The kernel is asked for one message at a time, as most servers in Erlang do.
echo(Socket) ->
    inet:setopts(Socket, [{active, once}]),
    receive
        {tcp, Socket, Bytes} -> gen_tcp:send(Socket, Bytes), echo(Socket);
        {tcp_closed, Socket} -> gen_tcp:close(Socket);
        {tcp_error, Socket, _} -> gen_tcp:close(Socket)
    end.

talk(Port, Seed) ->
    {ok, Socket} = gen_tcp:connect({127,0,0,1}, Port, [binary, {active, false}, {nodelay, true}]),
    [begin
         Due = crypto_free(Seed * 1000 + Round, 1 + (Round * 7919 * Seed) rem 50000),
         ok = gen_tcp:send(Socket, Due),
         {ok, Due} = gen_tcp:recv(Socket, byte_size(Due), 60000)
     end || Round <- lists:seq(1, 60)],
    ok = gen_tcp:shutdown(Socket, write),
    {error, closed} = gen_tcp:recv(Socket, 0, 60000),
    gen_tcp:close(Socket).

%% Bytes that are told apart wherever they are cut, without a library that is packaged apart.
crypto_free(Seed, Length) ->
    State = rand:seed_s(exsss, Seed),
    {Bytes, _} = rand:bytes_s(Length, State),
    Bytes.
