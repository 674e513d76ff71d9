// Package holdfast is the part that every lock kind of the toolkit shares:
// sessions, leases, options, errors and observers. The locks themselves are in
// packages of their own, such as reentrant.
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:6379"}})
//	hf, err := holdfast.New(client, holdfast.SessionOptions{}) // one per process and server
//	defer hf.Close(ctx)
//
//	orders, err := reentrant.New(hf, "orders", holdfast.Options{}) // once, at start
//	err = orders.For("4711").Do(ctx, func(ctx context.Context) error {
//		return pay(ctx) // ctx ends if the lock is lost
//	})
//
// # What it promises
//
// At most one owner's context is live at a time (readers share theirs), as long
// as: clocks run at about the same rate; Redis forgets no acknowledged write and
// its clock does not jump; nobody removes the key by hand. The context of a lease
// ends before Redis can give the lock to anyone else, whatever the network does,
// since its deadline counts from the moment the last good renewal was sent.
//
// # What it does not promise
//
// A process that stands still (a garbage collection, a suspended machine, a
// debugger) cannot see its context end, and a failover of Redis can forget a
// lock. Only the resource itself can then refuse the late writer: take the lock
// with [Options.Fencing], send [Lease.Token] along, and check it with package
// fence or the SQL that its documentation shows.
//
// # Re-entrance
//
// A lock is re-entered through the context, never by goroutine and never by an
// owner's name: Lock looks for the nearest lease of the same session, kind and
// name that ctx was made under, and if that one is still held it takes a nested
// hold. Goroutines started under a live hold therefore share it, and do not
// exclude each other. [WithoutLeases] makes a context that takes locks as a
// stranger, [WithLease] serves code that cannot pass the context along.
package holdfast
