-- A client that calls the C library's functions and checks every byte that comes back. Its argument is the server's port.
local ffi = require("ffi")
ffi.cdef [[
struct address { uint16_t family, port; uint32_t ip; uint8_t zero[8]; };
int socket(int, int, int);
int connect(int, const struct address *, unsigned);
ssize_t send(int, const void *, size_t, int);
ssize_t recv(int, void *, size_t, int);
int close(int);
uint16_t htons(uint16_t);
uint32_t htonl(uint32_t);
int usleep(unsigned);
]]

local function run(library, calls)
    local fd = library.socket(2, 1, 0)
    local address = ffi.new("struct address", { 2, calls.htons(tonumber(arg[1])), calls.htonl(0x7F000001) })
    assert(library.connect(fd, address, ffi.sizeof(address)) == 0, "connect")
    local room = ffi.new("char[?]", 4000)
    for turn = 1, 400 do
        local due = string.rep(string.char(65 + turn % 26), 1 + turn * 7919 % 3999)
        -- In turns with the functions that the program itself finds.
        local sender, receiver = turn % 2 == 0 and calls or library, turn % 3 == 0 and library or calls
        assert(sender.send(fd, due, #due, 0) == #due, "send")
        local got = ""
        while #got < #due do
            local length = tonumber(receiver.recv(fd, room, 4000, 0))
            assert(length > 0, "an early end")
            got = got .. ffi.string(room, length)
        end
        assert(got == due, "other bytes came back")
        -- The service that pairs the two ends needs a moment.
        if turn % 16 == 0 then calls.usleep(10000) end
    end
    library.close(fd)
end

for _ = 1, 4 do
    run(ffi.load("libc.so.6"), ffi.C)
end
print("fine")
