package scripts

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"regexp"

	"github.com/redis/rueidis"
)

//go:embed lua
var files embed.FS

// The scripts. Keys, arguments and reply are in the header of lua/NAME.lua.
var (
	// ReentrantAcquire takes a lock for a new owner.
	ReentrantAcquire = load("reentrant_acquire")
	// ReentrantAcquireFenced takes a lock for a new owner and mints tokens.
	ReentrantAcquireFenced = load("reentrant_acquire_fenced")
	// ReentrantCount sets the number of holds of an owner.
	ReentrantCount = load("reentrant_count")
	// ReentrantRelease gives back all holds of an owner.
	ReentrantRelease = load("reentrant_release")
	// ReentrantReleaseReceipt does so and remembers that it was done.
	ReentrantReleaseReceipt = load("reentrant_release_receipt")
	// ReentrantRenew gives locks a fresh lease.
	ReentrantRenew = load("reentrant_renew")
	// ReentrantInfo reads who holds a lock.
	ReentrantInfo = load("reentrant_info")
	// ReentrantForce removes a lock, whoever has it.
	ReentrantForce = load("reentrant_force")

	// RwlockReadAcquire lets a reader in.
	RwlockReadAcquire = load("rwlock_read_acquire")
	// RwlockReadRelease gives back the hold of a reader.
	RwlockReadRelease = load("rwlock_read_release")
	// RwlockReadRenew gives readers a fresh lease.
	RwlockReadRenew = load("rwlock_read_renew")
	// RwlockHoldRenew gives the key of a reader's hold a fresh lease.
	RwlockHoldRenew = load("rwlock_hold_renew")
	// RwlockReadWithdraw says that the readers of a session do not wait any longer.
	RwlockReadWithdraw = load("rwlock_read_withdraw")
	// RwlockPrune takes readers out whose holds have ended.
	RwlockPrune = load("rwlock_prune")
	// RwlockWriteAcquire lets a writer in and mints tokens.
	RwlockWriteAcquire = load("rwlock_write_acquire")
	// RwlockWriteRelease gives back all holds of a writer.
	RwlockWriteRelease = load("rwlock_write_release")
	// RwlockWriteWithdraw says that a writer does not wait any longer.
	RwlockWriteWithdraw = load("rwlock_write_withdraw")
	// RwlockDowngrade makes a writer a reader.
	RwlockDowngrade = load("rwlock_downgrade")
	// RwlockInfo reads who holds a read-write lock.
	RwlockInfo = load("rwlock_info")
	// RwlockForce removes a read-write lock, whoever has it.
	RwlockForce = load("rwlock_force")

	// SegmentedCount records how many segments a striped lock has.
	SegmentedCount = load("segmented_count")
	// StockInit decides what a stock is.
	StockInit = load("stock_init")
	// StockBucket makes a bucket of a stock.
	StockBucket = load("stock_bucket")
	// StockOpen opens a stock.
	StockOpen = load("stock_open")
	// StockReserve takes units for an order, for a time.
	StockReserve = load("stock_reserve")
	// StockSettle makes a tentative order a reserved one.
	StockSettle = load("stock_settle")
	// StockConfirm sells the units of an order.
	StockConfirm = load("stock_confirm")
	// StockCancel gives the units of an order back.
	StockCancel = load("stock_cancel")
	// StockExtend gives an order more time.
	StockExtend = load("stock_extend")
	// StockRefund puts units of a sold order on sale again.
	StockRefund = load("stock_refund")
	// StockAdd puts more units on sale.
	StockAdd = load("stock_add")
	// StockGet reads an order.
	StockGet = load("stock_get")
	// StockGive sends units to another bucket.
	StockGive = load("stock_give")
	// StockTake takes in units that other buckets have sent.
	StockTake = load("stock_take")
	// StockArrived notes that units have arrived.
	StockArrived = load("stock_arrived")
	// StockResize says in how many buckets free units rest.
	StockResize = load("stock_resize")
	// StockView reads what a bucket has.
	StockView = load("stock_view")
	// StockSweep ends, forgets and lists orders.
	StockSweep = load("stock_sweep")
	// StockScan reads a part of all orders.
	StockScan = load("stock_scan")
	// StockAcknowledge takes expired orders off the list.
	StockAcknowledge = load("stock_acknowledge")
)

// FenceGuard is the text that goes before a script that a fence guards; it is
// not a script of its own. See lua/fence_guard.lua.
var FenceGuard = read("fence_guard")

// A Script is one script, known to the server by its SHA-1.
type Script struct {
	name, text, sha string
}

// New returns a script made of text; name is for people.
func New(name, text string) *Script {
	sum := sha1.Sum([]byte(text))
	return &Script{name: name, text: text, sha: hex.EncodeToString(sum[:])}
}

// Name is the script's name.
func (s *Script) Name() string { return s.name }

// Text is what the server runs.
func (s *Script) Text() string { return s.text }

// Exec runs the script once: by its SHA-1, and by its text if the server does
// not know it, which then knows it. It is never sent again for any other reason;
// that is for those who know what a repeat would do. ctx bounds the call.
func (s *Script) Exec(ctx context.Context, c rueidis.CoreClient, keys, args []string) rueidis.RedisResult {
	r := c.Do(ctx, s.command(c, keys, args))
	if unknown(r) {
		r = c.Do(ctx, c.B().Eval().Script(s.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	}
	return r
}

// A Call is the keys and arguments of one run.
type Call struct {
	Keys, Args []string
}

// ExecMulti runs the script once for each call, all in one pipeline to each
// node, and returns the results in order.
func (s *Script) ExecMulti(ctx context.Context, c rueidis.CoreClient, calls []Call) []rueidis.RedisResult {
	commands := make([]rueidis.Completed, len(calls))
	for i, call := range calls {
		commands[i] = s.command(c, call.Keys, call.Args)
	}
	results := append([]rueidis.RedisResult(nil), c.DoMulti(ctx, commands...)...)
	for i, r := range results {
		if unknown(r) { // the text once for each node, and the SHA-1 for the rest of its pipeline
			results[i] = s.Exec(ctx, c, calls[i].Keys, calls[i].Args)
		}
	}
	return results
}

// ExecBoth runs two scripts of one slot, the second behind the first on the same
// connection, and returns both results.
func ExecBoth(ctx context.Context, c rueidis.CoreClient, s1 *Script, c1 Call, s2 *Script, c2 Call) [2]rueidis.RedisResult {
	results := [2]rueidis.RedisResult(c.DoMulti(ctx, s1.command(c, c1.Keys, c1.Args), s2.command(c, c2.Keys, c2.Args)))
	if unknown(results[0]) {
		results[0] = s1.Exec(ctx, c, c1.Keys, c1.Args)
	}
	if unknown(results[1]) {
		results[1] = s2.Exec(ctx, c, c2.Keys, c2.Args)
	}
	return results
}

func (s *Script) command(c rueidis.CoreClient, keys, args []string) rueidis.Completed {
	return c.B().Evalsha().Sha1(s.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func unknown(r rueidis.RedisResult) bool {
	err, ok := rueidis.IsRedisErr(r.Error())
	return ok && err.IsNoScript()
}

// include is the line for which a script has the text of lua/include/NAME.lua.
var include = regexp.MustCompile(`(?m)^-- include: ([a-z_]+)\n`)

// load reads a script; it panics if there is none, which is a mistake of ours.
func load(name string) *Script {
	return New(name, include.ReplaceAllStringFunc(read(name), func(line string) string {
		return read("include/" + include.FindStringSubmatch(line)[1])
	}))
}

func read(name string) string {
	text, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic("scripts: " + err.Error())
	}
	return string(text)
}
