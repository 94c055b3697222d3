/* Bywire for C: ports, messages, put and get, with no system call on the data path.
 *
 * Generated from crates/bywire-capi; do not edit. docs/c.md tells how to use it.
 *
 * Every function returns BW_OK or a negative bw_error_t unless it says otherwise. A handle belongs to
 * one thread at a time and may move between threads. Handles must come from this library and not
 * have been given back to it; null pointers and numbers out of range are errors. */


#ifndef BYWIRE_H
#define BYWIRE_H

#include <stddef.h>
#include <stdint.h>

/* The version of this interface. A library with another version has another file name (`libbywire.so.N`). */
#define BW_ABI_VERSION 0

/* The longest message that needs no posted buffer when the sender uses the default geometry. */
#define BW_FRAGMENT_BYTES 4096

/* A timeout of bw_wait or bw_connect that never ends. */
#define BW_FOREVER -1

/* The longest note of a put, in bytes. */
#define BW_NOTE_BYTES_MAX 32

/* Results of functions. Success is zero or positive, failure is negative. */
typedef enum {
  /* Done. */
  BW_OK = 0,
  /* A pointer was null, a number out of range, or a text not UTF-8; bw_last_error_text says which. */
  BW_ERROR_ARGUMENT = -1,
  /* A fault inside the library. From now on all other calls on the port fail: close it. */
  BW_ERROR_PANIC = -2,
  /* The kernel refused; bw_last_error_text has its error. */
  BW_ERROR_SYSTEM = -3,
  /* The port belongs to the process that forked this one. */
  BW_ERROR_FORKED = -4,
  /* An error that this version of the interface has no code for. */
  BW_ERROR_UNKNOWN = -5,
  /* Another thread is inside a call on this port, which belongs to one thread at a time. */
  BW_ERROR_THREADS = -6,
  /* The part of an address before the slash is not a node's name. */
  BW_ERROR_ADDRESS_NODE = -10,
  /* The text is not a port's name or number. */
  BW_ERROR_ADDRESS_PORT = -11,
  /* Another living process has the port. */
  BW_ERROR_IN_USE = -20,
  /* A dead socket of another user stands in the way. */
  BW_ERROR_OTHER_USER = -21,
  /* An option is outside its limits. */
  BW_ERROR_OPTION = -22,
  /* The runtime directory cannot be used. */
  BW_ERROR_RUNTIME_DIRECTORY = -23,
  /* Another process holds the runtime directory's lock. */
  BW_ERROR_LOCKED = -24,
  /* No such node in this fabric. */
  BW_ERROR_UNKNOWN_NODE = -30,
  /* No process has opened that port. */
  BW_ERROR_NO_PORT = -31,
  /* The port's owner does not admit this user. */
  BW_ERROR_NOT_ADMITTED = -32,
  /* The other end did not answer in time. */
  BW_ERROR_TIMED_OUT = -33,
  /* A port cannot be its own peer. */
  BW_ERROR_OWN_PORT = -34,
  /* This port has as many peers as its options allow. */
  BW_ERROR_TOO_MANY_PEERS = -35,
  /* The other end's user keeps too much memory of connections that have ended. */
  BW_ERROR_MEMORY_KEPT = -36,
  /* Only this machine can be reached: its node does not run, or cannot be used. */
  BW_ERROR_NO_FABRIC = -37,
  /* The other machine's node does not answer. */
  BW_ERROR_UNREACHABLE = -38,
  /* Both nodes agreed, but no packet passes between the two ports. */
  BW_ERROR_BLOCKED = -39,
  /* The other end speaks another version of the protocol. */
  BW_ERROR_REFUSED_VERSION = -40,
  /* The other end has as many peers as it allows. */
  BW_ERROR_REFUSED_TOO_MANY_PEERS = -41,
  /* The other end could not verify this port. */
  BW_ERROR_REFUSED_UNVERIFIED = -42,
  /* The other end did not accept the offered memory. */
  BW_ERROR_REFUSED_BAD_OFFER = -43,
  /* The other end has run out of descriptors or memory. */
  BW_ERROR_REFUSED_NO_RESOURCES = -44,
  /* The other end closed the connection before it was made. */
  BW_ERROR_REFUSED_CLOSED = -45,
  /* Programs of this user keep too much of the other end's memory from connections that have ended. */
  BW_ERROR_REFUSED_MEMORY_KEPT = -46,
  /* There is no room in the lane to that peer now. */
  BW_ERROR_FULL = -50,
  /* All send tokens of this priority are in use. */
  BW_ERROR_NO_TOKEN = -51,
  /* The message is longer than the target or this call accepts. */
  BW_ERROR_TOO_LONG = -52,
  /* The handle names no connection. */
  BW_ERROR_NO_PEER = -53,
  /* The handshake is not over yet. */
  BW_ERROR_CONNECTING = -54,
  /* A datagram was dropped, and counted, for lack of room. */
  BW_ERROR_DROPPED = -55,
  /* All receive tokens of this priority are in use. */
  BW_ERROR_NO_RECEIVE_TOKEN = -56,
  /* The peer closed its port. */
  BW_ERROR_DISCONNECTED_CLOSED = -60,
  /* The peer's process ended. */
  BW_ERROR_DISCONNECTED_DIED = -61,
  /* The peer broke the protocol. */
  BW_ERROR_DISCONNECTED_BROKEN = -62,
  /* A payload from the peer was corrupted. */
  BW_ERROR_DISCONNECTED_CORRUPTED = -63,
  /* The connection was ended on this side. */
  BW_ERROR_DISCONNECTED_HERE = -64,
  /* The peer's machine has not answered for long. */
  BW_ERROR_DISCONNECTED_UNREACHABLE = -65,
  /* The peer's node was removed from the fabric. */
  BW_ERROR_DISCONNECTED_REMOVED = -66,
  /* The key names no region, or one that was revoked. */
  BW_ERROR_BAD_KEY = -70,
  /* The region does not grant this right. */
  BW_ERROR_NO_RIGHT = -71,
  /* The range exceeds the region. */
  BW_ERROR_OUT_OF_RANGE = -72,
  /* Every block of the heap is lent. */
  BW_ERROR_NO_BLOCK = -80,
  /* The block is not from a heap shared with this peer. */
  BW_ERROR_OTHER_PEER = -81,
  /* A heap's sizes are zero or over the limit. */
  BW_ERROR_HEAP_SIZE = -82,
  /* The peer is on another machine, so nothing can be lent to it. */
  BW_ERROR_OTHER_MACHINE = -83,
} bw_error_t;

/* Who may connect to a port. The kernel attests a stranger's user, so it cannot be forged. */
typedef enum {
  /* Processes of the port owner's user, and of root. */
  BW_ADMIT_SAME_USER = 0,
  /* The same processes, and members of the group `admit_group`. */
  BW_ADMIT_GROUP = 1,
  /* Every user of this machine. */
  BW_ADMIT_EVERYONE = 2,
} bw_admit_t;

/* From where a port can be reached. Connecting to other ports needs neither. */
typedef enum {
  /* From its own machine. */
  BW_REACH_MACHINE = 0,
  /* From every node of the fabric that its machine's node belongs to, for whom `admit` lets in. */
  BW_REACH_FABRIC = 1,
} bw_reach_t;

/* One of two independent lanes; neither can block the other. */
typedef enum {
  /* For the bulk of the traffic. */
  BW_PRIORITY_LOW = 0,
  /* For messages that must not wait behind the bulk. */
  BW_PRIORITY_HIGH = 1,
} bw_priority_t;

/* When a transfer counts as complete. */
typedef enum {
  /* When the buffer may be used again. */
  BW_CONFIRM_COPIED = 0,
  /* When the target port has consumed the message. */
  BW_CONFIRM_DELIVERED = 1,
} bw_confirm_t;

/* The kind of an event. Programs ignore numbers that they do not know. */
typedef enum {
  /* No event; all other fields are zero. */
  BW_EVENT_NONE = 0,
  /* A message: `peer`, `priority`, `data`, `length_bytes`, and `buffer` if it is in posted memory. A long one is.
     After the end of a peer, a message that was whole in its ring comes without a posted buffer too, in memory of
     the library. */
  BW_EVENT_MESSAGE = 1,
  /* A datagram, with the fields of a message. */
  BW_EVENT_DATAGRAM = 2,
  /* A message that the peer lent: `peer`, `priority`, `length_bytes`, and `lent`, which the program gives back
     with bw_lent_return. */
  BW_EVENT_LENT = 3,
  /* A peer has connected, or has accepted our bw_connect_start: `peer`. */
  BW_EVENT_CONNECTED = 4,
  /* A peer is gone, and its handle is dead: `peer`, and the reason in `status`. */
  BW_EVENT_DISCONNECTED = 5,
  /* An asynchronous send is over: `transfer`, `buffer`, `status`. */
  BW_EVENT_SENT = 6,
  /* A put is over. The target has the data unless `status` is an error: `transfer`, `buffer`, `status`. */
  BW_EVENT_PUT = 7,
  /* A get is over. The buffer holds the data unless `status` is an error: `transfer`, `buffer`, `status`. */
  BW_EVENT_GOT = 8,
  /* A peer has put data into a region of ours: `peer`, and its note in `data` and `length_bytes`. */
  BW_EVENT_NOTIFIED = 9,
  /* There is room again after a send that was BW_ERROR_FULL: `peer`, `priority`. */
  BW_EVENT_ROOM = 10,
  /* A long message waits for a posted buffer: `peer`, `priority`, `length_bytes`. Reported once, and again if a
     buffer posted since is too small. */
  BW_EVENT_BUFFER_NEEDED = 11,
  /* An event that this version of the interface has no number for. */
  BW_EVENT_OTHER = 12,
} bw_event_kind_t;

/* What peers may do with a region; or-ed together. */
typedef enum {
  /* They may get. */
  BW_RIGHT_READ = 1,
  /* They may put. */
  BW_RIGHT_WRITE = 2,
} bw_right_t;

/* A block to write a message into. */
typedef struct bw_block_t bw_block_t;

/* Memory shared with one peer, in equal blocks that can be lent to it. */
typedef struct bw_heap_t bw_heap_t;

/* A message that a peer lent. It may be read and returned on any thread. */
typedef struct bw_lent_t bw_lent_t;

/* A protected message endpoint. It belongs to one thread at a time and may move between threads. */
typedef struct bw_port_t bw_port_t;

/* The size of one lane of the rings towards a peer. */
typedef struct {
  /* Records that can be outstanding; a power of two from 8 to 8192. */
  uint32_t slots;
  /* Payload bytes that can be outstanding; a power of two from 4 KiB to 8 MiB. */
  uint32_t bulk_bytes;
} bw_lane_t;

/* Everything that can be chosen when a port is opened. Fill it with bw_port_options_init, then change fields.
   Programs then keep working when later versions have more options. */
typedef struct {
  /* The size of this structure as the program knows it; bw_port_options_init sets it. */
  size_t size_bytes;
  /* The port's number or name as text; NULL: any free number. */
  const char *name;
  /* The runtime directory, in which ports find each other. NULL: BYWIRE_RUNTIME_DIR, else /run/bywire if it can be
     used, else XDG_RUNTIME_DIR/bywire, else /tmp/bywire-UID. */
  const char *runtime_directory;
  /* The longest message that this port accepts, in bytes (up to 2^40). */
  uint64_t message_bytes_max;
  /* Memory that one peer may share with this port to lend from, in bytes. All peers of another user share this
     amount. */
  uint64_t borrow_bytes_max;
  /* The longest time that bw_wait spins before it sleeps. */
  uint64_t spin_ns;
  /* How often a polled port looks for new peers and for dead ones. */
  uint64_t housekeeping_interval_ns;
  /* A bw_admit_t. */
  uint32_t admit;
  /* The group that BW_ADMIT_GROUP admits. */
  uint32_t admit_group;
  /* 1: check every payload end to end with CRC32C, in both directions. On as soon as either end wants it. */
  uint32_t integrity;
  /* Asynchronous transfers that may be outstanding, for each priority (1 to 256). A token is free as soon as its
     completion is queued. So it does not bound the completions that wait for a program that takes no events. */
  uint32_t send_tokens;
  /* Receive buffers that may be posted, for each priority. */
  uint32_t receive_tokens;
  /* The most connections at a time. */
  uint32_t peers_max;
  /* The rings to each peer: for the library's own answers, high priority, low priority. */
  bw_lane_t lanes[3];
  /* The most payload that one record carries: 512 to 65472 bytes, in steps of 64. */
  uint32_t fragment_bytes;
  /* The most peers that have a large window, a bulk area of 4 MiB of their own, once they are sent much; 0: none. */
  uint32_t large_window_peers_max;
  /* How long bw_disconnect and bw_port_close go on until a peer on another machine has what was sent to it. */
  uint64_t linger_ns;
  /* A peer on another machine is given up once neither it nor its node has answered for so long while something was
     to be sent to it; 0: never. */
  uint64_t unreachable_after_ns;
  /* A bw_reach_t: from where others may connect. */
  uint32_t reach;
  /* The longest message that is copied at once to a peer on another machine, if it is longer than `fragment_bytes`: up to 65536. */
  uint32_t remote_fragment_bytes;
} bw_port_options_t;

/* Counters of a port, since it was opened. */
typedef struct {
  /* Datagrams that found no room and were dropped at this end. */
  uint64_t datagrams_unsent;
  /* Datagrams that arrived damaged and were dropped. */
  uint64_t datagrams_damaged;
  /* Incoming connections that were turned away. */
  uint64_t refused;
  /* Times that the port slept. */
  uint64_t sleeps;
} bw_statistics_t;

/* One connection of a port; 0 is none. A new incarnation of the same peer gets a new handle. */
typedef uint64_t bw_peer_t;

/* Information about a peer. The kernel attests the identity of a peer of this machine, its own node that of another. */
typedef struct {
  /* Its node and port, as text. */
  char address[128];
  /* A number that differs between incarnations of the same port. */
  uint64_t incarnation;
  /* The longest message that it accepts, in bytes. */
  uint64_t message_bytes_max;
  /* Its process in our pid namespace; 0 if it is in a namespace that we cannot see, or on another machine. */
  int32_t pid;
  /* Its user; UINT32_MAX for a peer on another machine. */
  uint32_t uid;
  /* 1: payloads are checked end to end. */
  uint32_t integrity;
  /* Zero. */
  uint32_t reserved;
  /* The name of its user there, or a number if it has none, for a peer on another machine; else empty. Its node
     vouches for it: whoever is root there can be any of its users. */
  char user[264];
} bw_peer_info_t;

/* Identifies an asynchronous transfer until its completion. */
typedef uint64_t bw_transfer_t;

/* An event of a port. `data` is valid until the next bw_poll, bw_wait or bw_event_release on the port. Data in
   posted memory is an exception: it is the program's again at once. */
typedef struct {
  /* A bw_event_kind_t. */
  uint32_t kind;
  /* BW_OK, or the bw_error_t of a transfer that failed or a peer that has gone. */
  int32_t status;
  /* The peer, or 0. */
  bw_peer_t peer;
  /* The transfer, or 0. */
  bw_transfer_t transfer;
  /* A bw_priority_t. */
  uint32_t priority;
  /* Zero. */
  uint32_t reserved;
  /* The bytes of a message, a datagram or a note. */
  const void *data;
  /* The length of a message, a datagram or a note. */
  uint64_t length_bytes;
  /* The program's own memory, which it may use again; NULL if there is none or it was empty. */
  void *buffer;
  /* The whole length of `buffer`. */
  uint64_t buffer_bytes;
  /* A lent message, which belongs to the program. */
  bw_lent_t *lent;
  /* Zero; room for later versions. */
  uint64_t reserved_words[3];
} bw_event_t;

/* The capability to reach a region: hand it to peers, in a message for example. */
typedef uint64_t bw_key_t;

/* Every code. */
#define bw_error_t_ALL { BW_OK, BW_ERROR_ARGUMENT, BW_ERROR_PANIC, BW_ERROR_SYSTEM, BW_ERROR_FORKED, BW_ERROR_UNKNOWN, BW_ERROR_THREADS, BW_ERROR_ADDRESS_NODE, BW_ERROR_ADDRESS_PORT, BW_ERROR_IN_USE, BW_ERROR_OTHER_USER, BW_ERROR_OPTION, BW_ERROR_RUNTIME_DIRECTORY, BW_ERROR_LOCKED, BW_ERROR_UNKNOWN_NODE, BW_ERROR_NO_PORT, BW_ERROR_NOT_ADMITTED, BW_ERROR_TIMED_OUT, BW_ERROR_OWN_PORT, BW_ERROR_TOO_MANY_PEERS, BW_ERROR_MEMORY_KEPT, BW_ERROR_NO_FABRIC, BW_ERROR_UNREACHABLE, BW_ERROR_BLOCKED, BW_ERROR_REFUSED_VERSION, BW_ERROR_REFUSED_TOO_MANY_PEERS, BW_ERROR_REFUSED_UNVERIFIED, BW_ERROR_REFUSED_BAD_OFFER, BW_ERROR_REFUSED_NO_RESOURCES, BW_ERROR_REFUSED_CLOSED, BW_ERROR_REFUSED_MEMORY_KEPT, BW_ERROR_FULL, BW_ERROR_NO_TOKEN, BW_ERROR_TOO_LONG, BW_ERROR_NO_PEER, BW_ERROR_CONNECTING, BW_ERROR_DROPPED, BW_ERROR_NO_RECEIVE_TOKEN, BW_ERROR_DISCONNECTED_CLOSED, BW_ERROR_DISCONNECTED_DIED, BW_ERROR_DISCONNECTED_BROKEN, BW_ERROR_DISCONNECTED_CORRUPTED, BW_ERROR_DISCONNECTED_HERE, BW_ERROR_DISCONNECTED_UNREACHABLE, BW_ERROR_DISCONNECTED_REMOVED, BW_ERROR_BAD_KEY, BW_ERROR_NO_RIGHT, BW_ERROR_OUT_OF_RANGE, BW_ERROR_NO_BLOCK, BW_ERROR_OTHER_PEER, BW_ERROR_HEAP_SIZE, BW_ERROR_OTHER_MACHINE, }

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* The version of the interface that the library was built with, for comparison with BW_ABI_VERSION. */
uint32_t bw_abi_version(void);

/* The library's own version as text, such as "0.1.0"; valid forever. */
const char *bw_version(void);

/* The sentence for a code: what happened and what to do. Never null, valid forever. */
const char *bw_error_text(int code);

/* The sentence for the last call of this thread that failed, with particulars such as a path, a limit or the
   kernel's error. Never null; valid until the next failing call of this thread. */
const char *bw_last_error_text(void);

/* Fills `options` with the defaults, which suit most programs. `size_bytes` is sizeof *options.
   The caller promises: `options` is null or valid for writes of `size_bytes`. */
int bw_port_options_init(bw_port_options_t *options, size_t size_bytes);

/* Opens a port on this node and stores its handle. NULL `options` are the defaults.
   The caller promises: `options` is null or filled by bw_port_options_init, with texts that end in a zero byte. `port` is null or
   valid for a write. */
int bw_port_open(const bw_port_options_t *options,
                 bw_port_t **port);

/* Closes a port. Its peers see BW_ERROR_DISCONNECTED_CLOSED. Afterwards the library touches none of the program's memory.
   The handle and everything that events pointed to are no longer valid, except lent messages, heaps and blocks.
   The caller promises: `port` is null or a port that was not closed before, and no other thread uses it. */
int bw_port_close(bw_port_t *port);

/* The port's name, as a text that is valid until the port is closed. NULL for a null port.
   The caller promises: `port` is null or an open port. */
const char *bw_port_name(const bw_port_t *port);

/* The port's address, `node/port`, as a text that is valid until the port is closed. NULL for a null port.
   The caller promises: `port` is null or an open port. */
const char *bw_port_address(const bw_port_t *port);

/* The options that the port was opened with. Their texts are valid until the port is closed. `size_bytes` is sizeof
   *options.
   The caller promises: `port` is null or an open port; `options` is null or valid for writes of `size_bytes`. */
int bw_port_options(const bw_port_t *port,
                    bw_port_options_t *options,
                    size_t size_bytes);

/* The port's counters. `size_bytes` is sizeof *statistics.
   The caller promises: `port` is null or an open port; `statistics` is null or valid for writes of `size_bytes`. */
int bw_port_statistics(const bw_port_t *port, bw_statistics_t *statistics, size_t size_bytes);

/* A descriptor that becomes readable, after bw_arm has returned 1, as soon as there may be an event. It belongs to
   the port: watch it, but do not read or close it. A negative result is a bw_error_t.
   The caller promises: `port` is null or an open port. */
int bw_descriptor(const bw_port_t *port);

/* Connects to `node/port` and waits for the answer, at most `timeout_us` microseconds (BW_FOREVER: without end).
   Serves other ports meanwhile. The other end answers when it polls. Two ports of one thread need bw_connect_start.
   The caller promises: `port` is null or an open port, used by this thread alone; `address` is null or a text; `peer` is null or
   valid for a write. */
int bw_connect(bw_port_t *port,
               const char *address,
               int64_t timeout_us,
               bw_peer_t *peer);

/* Begins to connect: BW_EVENT_CONNECTED or BW_EVENT_DISCONNECTED follows.
   The caller promises: As for bw_connect. */
int bw_connect_start(bw_port_t *port, const char *address, bw_peer_t *peer);

/* Ends a connection. Messages that the peer has sent already are dropped. The peer sees BW_ERROR_DISCONNECTED_CLOSED. For an
   unknown peer it does nothing, which is no error. What was sent to a peer on another machine goes on for `linger_ns` at
   most, in the calls that follow; BW_EVENT_DISCONNECTED comes then.
   The caller promises: `port` is null or an open port, used by this thread alone. */
int bw_disconnect(bw_port_t *port,
                  bw_peer_t peer);

/* Information about a peer. BW_ERROR_NO_PEER while it connects, and once its BW_EVENT_DISCONNECTED has been taken.
   `size_bytes` is sizeof *info.
   The caller promises: `port` is null or an open port; `info` is null or valid for writes of `size_bytes`. */
int bw_peer_info(const bw_port_t *port,
                 bw_peer_t peer,
                 bw_peer_info_t *info,
                 size_t size_bytes);

/* Stores the handles of at most `peers_max` connected peers and returns how many are connected.
   The caller promises: `port` is null or an open port; `peers` is valid for writes of `peers_max` handles, or null when that is 0. */
int bw_peers(const bw_port_t *port,
             bw_peer_t *peers,
             size_t peers_max);

/* Copies a message of up to one fragment (BW_FRAGMENT_BYTES by default) to a peer, at once. It needs no token and
   no completion. BW_ERROR_FULL is back-pressure: try again after BW_EVENT_ROOM.
   The caller promises: `port` is null or an open port, used by this thread alone; `data` is valid for reads of `length_bytes`, or
   null when that is 0. */
int bw_send(bw_port_t *port,
            bw_peer_t peer,
            uint32_t priority,
            const void *data,
            size_t length_bytes);

/* Sends a datagram of up to one fragment. It arrives at most once, in no order, and never blocks anything.
   A datagram without room is dropped and counted: BW_ERROR_DROPPED.
   The caller promises: As for bw_send. */
int bw_send_datagram(bw_port_t *port,
                     bw_peer_t peer,
                     uint32_t priority,
                     const void *data,
                     size_t length_bytes);

/* Asks for BW_EVENT_ROOM as soon as a whole fragment fits into the lane to a peer. This is for programs that keep a
   datagram that was dropped for lack of room, and try again. The event comes once.
   The caller promises: `port` is null or an open port, used by this thread alone. */
int bw_await_room(bw_port_t *port,
                  bw_peer_t peer,
                  uint32_t priority);

/* Lets everything leave at once that was gathered for peers on other machines. Without this it leaves with the next
   bw_poll, bw_wait or bw_arm, or as soon as packets are full. Within one machine nothing is gathered.
   The caller promises: `port` is null or an open port, used by this thread alone. */
int bw_flush(bw_port_t *port);

/* Sends a message of any length from the program's own memory, which must stay unchanged until BW_EVENT_SENT gives
   it back. `confirm` is a bw_confirm_t. `transfer` may be NULL. Takes a send token, which is free again as soon as
   that event is queued, whether or not the program has taken it.
   The caller promises: `port` is null or an open port, used by this thread alone. `data` is valid for reads of `length_bytes`, from any
   thread, and not written until its event or until the port is closed. On failure this promise ends at once.
   `transfer` is null or valid for a write. */
int bw_send_buffer(bw_port_t *port,
                   bw_peer_t peer,
                   uint32_t priority,
                   const void *data,
                   size_t length_bytes,
                   uint32_t confirm,
                   bw_transfer_t *transfer);

/* Posts memory to receive one long message of this priority. The message's event gives the memory back. A message
   takes the smallest buffer that it fits into, and of equal ones the last posted. Messages of one fragment need none,
   nor do long ones of a peer that has ended.
   The caller promises: `port` is null or an open port, used by this thread alone. `data` is valid for reads and writes of `length_bytes`,
   from any thread, and not touched until its event or until the port is closed. On failure this promise ends at
   once. */
int bw_post_receive(bw_port_t *port,
                    uint32_t priority,
                    void *data,
                    size_t length_bytes);

/* Takes the next event. Returns 1 if there was one, otherwise 0. Never waits. Makes no system call, except about
   once in a millisecond to check sockets and to notice dead peers.
   The caller promises: `port` is null or an open port, used by this thread alone; `event` is null or valid for a write. */
int bw_poll(bw_port_t *port,
            bw_event_t *event);

/* Takes the next event that has arrived already. Returns 1 if there was one, otherwise 0. Looks neither at sockets nor at quiet peers,
   and makes no system call: for a program that takes several events at a time. bw_poll has to be called as well.
   The caller promises: As for bw_poll. */
int bw_poll_arrived(bw_port_t *port,
                    bw_event_t *event);

/* Returns 1 if the last bw_poll has moved something on without an event, such as a part of a long message, otherwise 0.
   The caller promises: `port` is null or an open port, used by this thread alone. */
int bw_has_progressed(bw_port_t *port);

/* Waits for the next event, at most `timeout_us` microseconds (BW_FOREVER: without end). Returns 1 if there was one,
   0 when the time is up. Spins for a bounded time, then sleeps.
   The caller promises: As for bw_poll. */
int bw_wait(bw_port_t *port,
            int64_t timeout_us,
            bw_event_t *event);

/* Gives back early the memory that the last event's `data` points to.
   The caller promises: `port` is null or an open port, used by this thread alone. */
int bw_event_release(bw_port_t *port);

/* Prepares to sleep on the port's descriptor. 1: there is nothing to do, and the descriptor becomes readable with
   the next event. 0: poll again instead. After waking, poll until there is no event, then arm again.
   The caller promises: `port` is null or an open port, used by this thread alone. */
int bw_arm(bw_port_t *port);

/* Registers a region of `length_bytes` that peers with its key may access with `rights`. It is the program's
   `memory`, or if that is NULL, zeroed memory of the library. Between calls on the port the program may read and
   write there. During calls peers' data arrives.
   The caller promises: `port` is null or an open port, used by this thread alone; `key` is null or valid for a write. `memory` is null or
   valid for reads and writes of `length_bytes`. Until bw_region_revoke or bw_port_close, no code touches it during a
   call on the port. */
int bw_region_register(bw_port_t *port,
                       void *memory,
                       size_t length_bytes,
                       uint32_t rights,
                       bw_key_t *key);

/* Stores the address of a region of ours, and its length unless `length_bytes` is NULL.
   The caller promises: `port` is null or an open port, used by this thread alone; the others are null or valid for a write. */
int bw_region_memory(bw_port_t *port,
                     bw_key_t key,
                     void **memory,
                     size_t *length_bytes);

/* Ends a region: its key is invalid from now on. The program's memory is its own again, and the library's is freed.
   The caller promises: `port` is null or an open port, used by this thread alone. */
int bw_region_revoke(bw_port_t *port,
                     bw_key_t key);

/* Puts data into a peer's region at `offset`, in order with messages of the same priority. A note (not NULL) of up
   to BW_NOTE_BYTES_MAX bytes notifies the peer after the data is visible. The data must stay unchanged until
   BW_EVENT_PUT gives it back. Takes a send token until that event is queued. `transfer` may be NULL.
   The caller promises: As for bw_send_buffer; `note` is null or valid for reads of `note_bytes`. */
int bw_put(bw_port_t *port,
           bw_peer_t peer,
           uint32_t priority,
           bw_key_t key,
           uint64_t offset,
           const void *data,
           size_t length_bytes,
           const void *note,
           size_t note_bytes,
           bw_transfer_t *transfer);

/* Gets `length_bytes` from a peer's region at `offset` into `data`, which belongs to the library until BW_EVENT_GOT.
   Takes a send token until that event is queued. `transfer` may be NULL.
   The caller promises: As for bw_post_receive; `transfer` is null or valid for a write. */
int bw_get(bw_port_t *port,
           bw_peer_t peer,
           uint32_t priority,
           bw_key_t key,
           uint64_t offset,
           void *data,
           size_t length_bytes,
           bw_transfer_t *transfer);

/* Makes memory shared with one peer, from which messages can be lent to it instead of copied: `blocks` (up to 1024) of
   `block_bytes` each (64 to 2^30, rounded up to whole cache lines).
   The caller promises: `port` is null or an open port, used by this thread alone; `heap` is null or valid for a write. */
int bw_heap_open(bw_port_t *port,
                 bw_peer_t peer,
                 size_t block_bytes,
                 uint32_t blocks,
                 bw_heap_t **heap);

/* Closes a heap. Blocks taken from it stay valid.
   The caller promises: `heap` is null or a heap that was not closed before. */
int bw_heap_close(bw_heap_t *heap);

/* Takes a free block. bw_send_lent or bw_block_drop gives it back.
   The caller promises: `heap` is null or an open heap; `block` is null or valid for a write. */
int bw_heap_block(const bw_heap_t *heap, bw_block_t **block);

/* The size of every block; 0 for a null heap.
   The caller promises: `heap` is null or an open heap. */
size_t bw_heap_block_bytes(const bw_heap_t *heap);

/* The peer that a heap is shared with; 0 for a null heap.
   The caller promises: `heap` is null or an open heap. */
bw_peer_t bw_heap_peer(const bw_heap_t *heap);

/* The memory for the block's message; NULL for a null block. Valid until the block is lent or dropped.
   The caller promises: `block` is null or a block of the program's, used by this thread alone. */
void *bw_block_memory(bw_block_t *block);

/* Gives a block back to its heap without sending it.
   The caller promises: `block` is null or a block of the program's that was neither lent nor dropped. */
int bw_block_drop(bw_block_t *block);

/* Lends the first `length_bytes` of a block, as a message, to the peer that its heap is shared with. On success the
   block belongs to the library, and is back in its heap when the peer is done with it. On failure it stays the
   program's.
   The caller promises: `port` is null or an open port, used by this thread alone; `block` as for bw_block_drop. */
int bw_send_lent(bw_port_t *port,
                 uint32_t priority,
                 bw_block_t *block,
                 size_t length_bytes);

/* Copies bytes of a lent message, from `offset` on, and returns how many were copied. Tolerates a lender that is
   still writing. 0 for a null message or a null target.
   The caller promises: `lent` is null or a lent message that was not returned; `target` is null or valid for writes of `target_bytes`. */
size_t bw_lent_read(const bw_lent_t *lent,
                    size_t offset,
                    void *target,
                    size_t target_bytes);

/* The lent message in place; NULL for a null message. Valid until bw_lent_return. The peer must be trusted not to
   write there any more. Otherwise data may change between a check and its use.
   The caller promises: `lent` is null or a lent message that was not returned, of a peer that is trusted. */
const void *bw_lent_memory(const bw_lent_t *lent);

/* The length of a lent message; 0 for a null one.
   The caller promises: `lent` is null or a lent message that was not returned. */
size_t bw_lent_bytes(const bw_lent_t *lent);

/* Gives a lent message back to its lender.
   The caller promises: `lent` is null or a lent message that was not returned before. */
int bw_lent_return(bw_lent_t *lent);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BYWIRE_H */
