// Package reentrant is the plain lock: one owner at a time, who may take it again.
// It is Redisson's RLock and, with [holdfast.Options.Fencing], its RFencedLock:
// Go and Java processes that use one name exclude and wake each other.
//
//	orders, err := reentrant.New(hf, "orders", holdfast.Options{})
//	err = orders.For("4711").Do(ctx, pay)
//
// # What it promises
//
// Mutual exclusion as package holdfast states it; re-entrance through the
// context; in one process, first come, first served. Between processes there is
// no order and no bound: who asks at the right moment wins. Between goroutines
// of one process the lock is handed over without asking Redis, at most
// [holdfast.Options.Handoff] times in a row and for 5 ms, then every process has
// its chance.
//
// # What is in Redis
//
//   - N, the lock's name: a hash of one field, the owner, whose value is the
//     number of holds. It always has a TTL.
//   - redisson_lock__channel:{N}: the channel of release messages, payload 0.
//   - redisson_lock_token:{N}: with Fencing, the last token minted; it outlives the
//     lock for [holdfast.Options.TokenRetention].
//   - redisson_unlock_latch:{N}:…: with [holdfast.SessionOptions.Receipts], for
//     a minute, the last release of one session.
package reentrant
