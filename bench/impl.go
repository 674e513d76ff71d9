package bench

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

// A Hold is one acquisition, to be given back once. It is an interface and not a
// func, for a closure would charge every implementation an allocation.
type Hold interface {
	Unlock(ctx context.Context) error
}

// A Locker is one caller's handle of one lock. Two goroutines use two of them.
type Locker interface {
	// Lock waits until the lock is taken or ctx ends.
	Lock(ctx context.Context) (Hold, error)
}

// A Client is what a process opens once: an implementation with its connections.
type Client interface {
	// Locker returns a new handle of the lock of that name.
	Locker(name string) Locker
	Close()
}

// A ReadLocker is a Client that has read-write locks, too.
type ReadLocker interface {
	Client
	// Reader returns a new handle of the read side of the lock of that name, which is
	// also its key.
	Reader(name string) (Locker, error)
}

// A Seller is a Client that has a stock, too.
type Seller interface {
	Client
	// Stock makes a stock of that name, with so many units on sale.
	Stock(ctx context.Context, name string, units int64) (Goods, error)
}

// Goods are a number of units for sale.
type Goods interface {
	// Buyer returns a new handle of the stock. Two goroutines use two of them.
	Buyer() Buyer
	// Left is how many units are on sale.
	Left(ctx context.Context) (int64, error)
}

// A Buyer buys.
type Buyer interface {
	// Buy takes one unit for an order, or says ErrSoldOut.
	Buy(ctx context.Context, order string) error
}

// ErrSoldOut is what a Buyer is told when nothing is on sale.
var ErrSoldOut = errors.New("bench: sold out")

// Env is what an implementation is given.
type Env struct {
	Addr string
	// Wire counts the commands that the client sends.
	Wire *Wire
	// Lease is how long the lock outlives its last renewal. Zero means the
	// implementation's default.
	Lease time.Duration
	// Index and Processes number the processes that share a lock. Only the bare
	// directed grant needs to know: it names its successor.
	Index, Processes int
}

// lease is for implementations that have no default.
func (e Env) lease() time.Duration {
	if e.Lease != 0 {
		return e.Lease
	}
	return 30 * time.Second
}

// rueidis returns the options of a client that all implementations on rueidis
// share. The cache is off, for locks have nothing to cache.
func (e Env) rueidis() rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:  []string{e.Addr},
		DisableCache: true,
		DialCtxFn:    e.Wire.dialRueidis,
	}
}

// A Role says what an implementation is in a comparison.
type Role int

// The roles.
const (
	Ours  Role = iota // Holdfast
	Limit             // what the wire and the machine allow; no lock to be used
	Peer              // another library
)

// An Impl is one implementation in one configuration.
type Impl struct {
	Name string
	Role Role
	// About says in a sentence what it is and how it waits; it ends in the report.
	About string
	// Server is the program it needs; empty means Redis or Valkey.
	Server string
	// Java is set if it runs the workloads in a Java program, which EnvRedisson names.
	// Then Open is nil.
	Java bool
	Open func(Env) (Client, error)
}

// EnvRedisson names the environment variable with the built Java program of module
// interop.
const EnvRedisson = "HOLDFAST_REDISSON"

// Impls are all implementations.
var Impls = []Impl{
	{
		Name: "holdfast", Role: Ours, Open: openHoldfast(holdfastConfig{}),
		About: "Holdfast's `reentrant` with every default. Waiters are woken by the message of the release; goroutines of one process hand the lock over, at most 64 times or 5 ms in a row. Where many read it is the read side of `rwlock`, where units are sold the `Stock` of `segmented`.",
	},
	{
		Name: "holdfast-cancellable", Role: Ours, Open: openHoldfast(holdfastConfig{cancellable: true}),
		About: "The same, with a context that can be cancelled, as most requests have one. The other rows of the workloads without contention use `context.Background()`.",
	},
	{
		Name: "holdfast-fenced", Role: Ours, Open: openHoldfast(holdfastConfig{fenced: true}),
		About: "The same with `Options.Fencing`: each hold has a token that rises.",
	},
	{
		Name: "holdfast-nohandoff", Role: Ours, Open: openHoldfast(holdfastConfig{noHandoff: true}),
		About: "The same with `Options.Handoff: -1`: each acquisition is one in Redis.",
	},

	{
		Name: "limit-hash", Role: Limit, Open: openBare(bareHash{}),
		About: "Holdfast's own acquire and release scripts as bare EVALSHA through the same client. No queue, no watchdog, no context: the least that this data format can cost.",
	},
	{
		Name: "limit-string", Role: Limit, Open: openBare(&bareString{}),
		About: "`SET NX PX` and a compare-and-delete script: the least that any lock in Redis can cost.",
	},
	{
		Name: "limit-handoff", Role: Limit, Open: openLocalHandoff,
		About: "A bare queue in front of limit-hash: goroutines pass the lock on in order, with a release and an acquire after 64 grants or 5 ms.",
	},
	{
		Name: "limit-grant", Role: Limit, Open: openGrant,
		About: "A bare directed grant: the script of the releaser writes the next owner, round robin, and publishes to that process alone. It needs to know who is next, which no lock here does.",
	},
	{
		Name: "limit-reader", Role: Limit, Open: openBareReaders,
		About: "Holdfast's own scripts for readers as bare EVALSHA through the same client, as limit-hash.",
	},
	{
		Name: "limit-reserve", Role: Limit, Open: openBareSeller,
		About: "Holdfast's own script for a reservation as a bare EVALSHA for each through the same client.",
	},
	{
		Name: "limit-batch", Role: Limit, Open: openBatch,
		About: "Bare renewals: one script for 100 keys, each third of a lease.",
	},

	{
		Name: "redsync-goredis", Role: Peer, Open: openRedsync(redsyncConfig{}),
		About: "redsync v4 on go-redis, default: it polls after 50 to 250 ms at random. It gives up after 32 tries; the adapter then calls Lock again. Where units are sold, its lock is held around a GET and a SET.",
	},
	{
		Name: "redsync-goredis-1ms", Role: Peer, Open: openRedsync(redsyncConfig{tuned: true}),
		About: "The same with WithRetryDelay(1 ms).",
	},
	{
		Name: "redsync-rueidis", Role: Peer, Open: openRedsync(redsyncConfig{rueidis: true}),
		About: "redsync v4 on rueidis, default retries.",
	},
	{
		Name: "redsync-rueidis-1ms", Role: Peer, Open: openRedsync(redsyncConfig{rueidis: true, tuned: true}),
		About: "The same with WithRetryDelay(1 ms).",
	},
	{
		Name: "redsync-rueidis-ticker", Role: Peer, Open: renewing(openRedsync(redsyncConfig{rueidis: true})),
		About: "redsync has no watchdog: a goroutine with a ticker for each lock calls Extend each third of a lease, as users write it.",
	},
	{
		Name: "redislock", Role: Peer, Open: openRedislock(100 * time.Millisecond),
		About: "bsm/redislock on go-redis. Its default does not wait at all, so this is the LinearBackoff(100 ms) of its documentation.",
	},
	{
		Name: "redislock-1ms", Role: Peer, Open: openRedislock(time.Millisecond),
		About: "The same with LinearBackoff(1 ms).",
	},
	{
		Name: "redislock-ticker", Role: Peer, Open: renewing(openRedislock(100 * time.Millisecond)),
		About: "redislock has no watchdog: a goroutine with a ticker for each lock calls Refresh each third of a lease, as users write it.",
	},
	{
		Name: "rueidislock", Role: Peer, Open: openRueidislock(false),
		About: "rueidislock, default: the majority of three keys, also on one server. Waiters are woken by the invalidation of client-side caching.",
	},
	{
		Name: "rueidislock-1key", Role: Peer, Open: openRueidislock(true),
		About: "rueidislock tuned for one server: KeyMajority 1, that is one key, NoLoopTracking, and TryNextAfter 1 s, without which a caller whose try took longer than 20 ms waits for ever.",
	},
	{
		Name: "redisson-protocol", Role: Peer, Open: openRedisson,
		About: "The protocol of Redisson's RLock, written anew on rueidis: its scripts, its unlock latch, one subscription for each process and lock, a watchdog in batches of 100; where many read those of the read side of its RReadWriteLock. Not Redisson, which is below: the JVM's costs are missing.",
	},
	{
		Name: "redisson", Role: Peer, Java: true,
		About: "Redisson itself: `RLock`, 64 connections, else its defaults. The workload runs in a JVM, with a thread for each caller, and not in this Go process; where four processes want one lock they are four JVMs. Server and cores are the same. Warm for two seconds before it is measured, so only in three workloads: a free lock on one core, one lock for 16 threads, and one lock for four processes. Commands are not counted: the JVM's connections are not read along.",
	},
	{
		Name: "etcd", Role: Peer, Server: "etcd", Open: openEtcd,
		About: "The Mutex of etcd's client/v3/concurrency, against one etcd server with its default durability, so each write waits for the disk. Goroutines that share a lock need a session each. It is a different promise: a lock in etcd survives the loss of a server.",
	},
}

// Find returns the implementation of that name.
func Find(name string) (Impl, bool) {
	for _, impl := range Impls {
		if impl.Name == name {
			return impl, true
		}
	}
	return Impl{}, false
}
