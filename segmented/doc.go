// Package segmented is for keys and goods that everybody wants at once: a striped
// lock, and a stock that is sold out without being oversold.
//
// # A striped lock
//
// [Lock] has a fixed number of segments, each a re-entrant lock of its own, and
// every key belongs to one of them. Work on different keys goes on side by side,
// with a bounded number of locks however many keys there are, and several or all
// of them can be taken at once:
//
//	accounts, err := segmented.New(hf, "accounts", segmented.Options{})
//	err = accounts.For("4711").Do(ctx, withdraw)
//
//	ctx, lease, err := accounts.LockKeys(ctx, "4711", "4712") // both, without a deadlock
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// It promises what package reentrant promises, for each segment. Keys spread
// evenly over segments by [Hash], which never changes; segments spread over the
// slots of a cluster. The number of segments is recorded in Redis at first use,
// and a process that comes with another number is refused: in a rolling deploy
// from 100 to 128 one key would have two locks. To change the number, stop all
// users of the lock and delete the record.
//
// Two keys that share a segment exclude each other, for no reason that their users
// can see. Where that matters, and there are not too many keys, give each its own
// lock with reentrant's For.
//
// # A stock
//
// A lock is the wrong tool for counting units: its holder reads, thinks and
// writes, and may stand still in between. A [Stock] decides and counts in one
// script:
//
//	shoes, err := segmented.OpenStock(hf, "shoes", segmented.StockOptions{})
//	err = shoes.Init(ctx, 10_000)                                     // once
//	r, err := shoes.Reserve(ctx, segmented.Order{ID: cart, Qty: 1})   // for 10 minutes
//	r, err = shoes.Confirm(ctx, cart)                                 // paid
//
// As long as Redis forgets no acknowledged write and its clock does not jump:
//
//   - A unit is on sale, reserved, tentatively in a basket, sold, or on its way
//     between two buckets, never two of these: at every moment [Units] sum up to what
//     was put on sale.
//   - An order has one effect, by whatever process and however often it is sent. It
//     ends as sold, cancelled or expired, and stays so. Refunds and deliveries
//     likewise. That is so for as long as they are remembered
//     ([StockOptions.Remember] after their end); a call that is repeated later is a
//     new call.
//   - [ErrSoldOut] is told only when at one moment of the call fewer units were free
//     than wanted, in all buckets together, those of reservations that are over, of
//     undecided baskets and on their way included.
//   - A buyer that dies holds its units for the window of its order, a basket that
//     dies for five seconds.
//
// Times are the server's. Reservations that are over are found when their units
// are wanted, and otherwise by [Stock.Sweep], which [Stock.Sweeper] runs now and then.
//
// On one server a stock is in one slot. In a cluster it has 64 buckets, each in a
// slot of its own ([StockOptions.Buckets]): an order is in the bucket of its id, and if
// that one is short, units are fetched from others. So a sale runs on all nodes, and
// costs more only when units become scarce. Reservations that goroutines of one
// process make at the same moment travel together.
//
// What it does not promise: an order whose Reserve got no answer may have its units:
// repeat it, or Cancel it, or let its time run out. A copy of a refused Reserve that
// was under way for long can still take units, when there are some again; they come
// back at the end of its window. A failover can lose the last writes:
// [Stock.Reconcile] shows it.
//
// # What is in Redis
//
// For a lock N:
//
//   - N:segment:I: the lock of segment I, with the channel and keys of package
//     reentrant.
//   - holdfast_segments:{N}: the number of segments, a string without a TTL.
//
// For a stock N, all without a TTL:
//
//   - holdfast_stock:{N}: a hash with what Init decided.
//   - For each bucket I, holdfast_stock_units:{N:I}: a hash of sums.
//     holdfast_stock_orders:{N:I}: a hash of all orders, refunds and deliveries that
//     are remembered. holdfast_stock_ends:{N:I}, holdfast_stock_forget:{N:I},
//     holdfast_stock_expired:{N:I}: sorted sets of them by time.
//     holdfast_stock_buyers:{N:I}: with a limit, a hash of what each buyer has, for as
//     long as the stock lives.
//   - holdfast_stock:{N:I}: the channel on which it is told that units ran out or
//     came back.
//
// To remove a stock, stop its users and delete these keys.
package segmented
