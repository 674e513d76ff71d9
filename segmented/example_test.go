package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/segmented"
)

// One lock per key would be too many, one for all too slow: the keys share 64.
func Example() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	accounts, err := segmented.New(hf, "accounts", segmented.Options{})
	if err != nil {
		panic(err)
	}
	err = accounts.For("4711").Do(ctx, func(ctx context.Context) error {
		fmt.Println("held:", accounts.For("4711").Held(ctx).Valid())
		return nil
	})
	fmt.Println(err)
	// Output:
	// held: true
	// <nil>
}

// A transfer needs both accounts, whoever else wants them in the other order.
func ExampleLock_LockKeys() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	accounts, err := segmented.New(hf, "transfers", segmented.Options{})
	if err != nil {
		panic(err)
	}
	transfer := func(ctx context.Context, from, to string) error {
		ctx, lease, err := accounts.LockKeys(ctx, from, to)
		if err != nil {
			return err
		}
		defer lease.Unlock(ctx)
		fmt.Println("moves from", from, "to", to, "under", len(lease.Parts()), "locks")
		return ctx.Err()
	}
	fmt.Println(transfer(ctx, "4711", "4712"))
	fmt.Println(transfer(ctx, "4712", "4711"))
	// Output:
	// moves from 4711 to 4712 under 2 locks
	// <nil>
	// moves from 4712 to 4711 under 2 locks
	// <nil>
}

// The year's closing needs all accounts at rest.
func ExampleLock_LockAll() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	accounts, err := segmented.New(hf, "closing", segmented.Options{Segments: 16})
	if err != nil {
		panic(err)
	}
	held, lease, err := accounts.LockAll(ctx)
	if err != nil {
		panic(err)
	}
	defer lease.Unlock(held)
	fmt.Println(len(lease.Parts()), "segments")
	// Output: 16 segments
}

// Four workers' places, of which each process takes one.
func ExampleLock_LockAny() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	places, err := segmented.New(hf, "places", segmented.Options{Segments: 4})
	if err != nil {
		panic(err)
	}
	taken := map[int]bool{}
	for range 4 {
		_, lease, place, err := places.LockAny(ctx)
		if err != nil {
			panic(err)
		}
		defer lease.Unlock(ctx)
		taken[place] = true
	}
	fmt.Println(len(taken), "different places")
	// Output: 4 different places
}

// A shop reserves, and the payment provider's webhook confirms, in whichever
// process it arrives, and as often as it likes.
func ExampleStock() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	shoes, err := segmented.OpenStock(hf, "shoes", segmented.StockOptions{})
	if err != nil {
		panic(err)
	}
	if err := shoes.Init(ctx, 100); err != nil { // every process may; it happens once
		panic(err)
	}
	r, err := shoes.Reserve(ctx, segmented.Order{ID: "cart-4711", Qty: 2, Window: 15 * time.Minute})
	if err != nil {
		panic(err)
	}
	fmt.Println(r.State, "for", r.Left)

	webhook := func(order string) {
		r, err := shoes.Confirm(ctx, order)
		switch {
		case errors.Is(err, segmented.ErrExpired):
			fmt.Println("too late: give the money back")
		case err != nil:
			fmt.Println(err) // answer with an error: the provider calls again
		default:
			fmt.Println(r.State, "again:", r.Replayed)
		}
	}
	webhook("cart-4711")
	webhook("cart-4711")

	v, err := shoes.View(ctx)
	fmt.Println(v.Free, "free,", v.Reserved, "reserved,", v.Sold, "sold", err)
	// Output:
	// reserved for 15m0s
	// sold again: false
	// sold again: true
	// 98 free, 0 reserved, 2 sold <nil>
}

// Two for each buyer, however many orders they place. The id of an order begins with
// the buyer's, so that a webhook that knows no more finds it.
func ExampleStockOptions_limit() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	tickets, err := segmented.OpenStock(hf, "tickets", segmented.StockOptions{Limit: 2})
	if err != nil {
		panic(err)
	}
	if err := tickets.Init(ctx, 100); err != nil {
		panic(err)
	}
	for _, o := range []segmented.Order{
		{ID: segmented.OrderID("ann", "1"), Buyer: "ann", Qty: 1},
		{ID: segmented.OrderID("ann", "2"), Buyer: "ann", Qty: 2},
		{ID: segmented.OrderID("bob", "3"), Buyer: "bob", Qty: 2},
	} {
		_, err := tickets.Reserve(ctx, o)
		var refused *segmented.StockError
		if errors.Is(err, segmented.ErrLimit) && errors.As(err, &refused) {
			fmt.Println(o.Buyer, "may have", refused.Left, "more")
			continue
		}
		fmt.Println(o.Buyer, "has", o.Qty, err)
	}
	// Output:
	// ann has 1 <nil>
	// ann may have 1 more
	// bob has 2 <nil>
}

// A part of an order is sent back, and on sale again.
func ExampleStock_Refund() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	mugs, err := segmented.OpenStock(hf, "mugs", segmented.StockOptions{})
	if err != nil {
		panic(err)
	}
	if err := mugs.Init(ctx, 3); err != nil {
		panic(err)
	}
	if _, err := mugs.Reserve(ctx, segmented.Order{ID: "o1", Qty: 3}); err != nil {
		panic(err)
	}
	if _, err := mugs.Confirm(ctx, "o1"); err != nil {
		panic(err)
	}
	for range 2 { // the second time changes nothing
		r, err := mugs.Refund(ctx, segmented.Refund{ID: "return-1", Order: "o1", Qty: 1})
		fmt.Println(r.Refunded, "of", r.Order.Qty, "refunded", err)
	}
	_, err = mugs.Refund(ctx, segmented.Refund{ID: "return-2", Order: "o1", Qty: 3})
	fmt.Println(err)
	// Output:
	// 1 of 3 refunded <nil>
	// 1 of 3 refunded <nil>
	// segmented: refund "o1" of stock "mugs": conflicts with what is known, 2 left
}

// A pallet arrives. The delivery note's number makes it one delivery.
func ExampleStock_Add() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	lamps, err := segmented.OpenStock(hf, "lamps", segmented.StockOptions{})
	if err != nil {
		panic(err)
	}
	if err := lamps.Init(ctx, 0); err != nil {
		panic(err)
	}
	_, err = lamps.Reserve(ctx, segmented.Order{ID: "o1", Qty: 1})
	fmt.Println(errors.Is(err, segmented.ErrSoldOut))
	for range 2 {
		if err := lamps.Add(ctx, segmented.Delivery{ID: "note-88", Qty: 40}); err != nil {
			panic(err)
		}
	}
	_, err = lamps.Reserve(ctx, segmented.Order{ID: "o1", Qty: 1})
	fmt.Println(err)
	v, err := lamps.View(ctx)
	fmt.Println(v.Free, "free of", v.Added, err)
	// Output:
	// true
	// <nil>
	// 39 free of 40 <nil>
}

// A stock with several buckets, as a cluster needs it, is drawn together for the end
// of the sale. Its orders stay where they are.
func ExampleStock_Resize() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	caps, err := segmented.OpenStock(hf, "caps", segmented.StockOptions{Buckets: 8})
	if err != nil {
		panic(err)
	}
	if err := caps.Init(ctx, 16); err != nil {
		panic(err)
	}
	if _, err := caps.Reserve(ctx, segmented.Order{ID: "cart-1", Qty: 2}); err != nil {
		panic(err)
	}
	if err := caps.Resize(ctx, 2); err != nil {
		panic(err)
	}
	v, err := caps.View(ctx)
	if err != nil {
		panic(err)
	}
	for i, b := range v.Buckets {
		if b.Free > 0 {
			fmt.Println(b.Free, "free in bucket", i)
		}
	}
	r, err := caps.Confirm(ctx, "cart-1")
	fmt.Println(r.State, err)
	// Output:
	// 7 free in bucket 0
	// 7 free in bucket 1
	// sold <nil>
}

// Any process may sweep, and several may.
func ExampleStock_Sweeper() {
	hf := exampleSession()
	defer hf.Close(context.Background())

	pens, err := segmented.OpenStock(hf, "pens", segmented.StockOptions{})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := pens.Init(context.Background(), 100); err != nil {
		panic(err)
	}
	fmt.Println(pens.Sweeper(ctx, 5*time.Millisecond)) // go pens.Sweeper(ctx, time.Minute)
	// Output:
	// context deadline exceeded
}

// A cart over two stocks gets both or neither.
func ExampleBasket() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	open := func(name string, units int64) *segmented.Stock {
		s, err := segmented.OpenStock(hf, name, segmented.StockOptions{})
		if err != nil {
			panic(err)
		}
		if err := s.Init(ctx, units); err != nil {
			panic(err)
		}
		return s
	}
	consoles, games := open("consoles", 1), open("games", 10)
	bundle := func(id string) segmented.Basket {
		return segmented.Basket{ID: id, Lines: []segmented.Line{{Stock: consoles, Qty: 1}, {Stock: games, Qty: 2}}}
	}
	_, err := bundle("cart-1").Reserve(ctx)
	fmt.Println(err)
	_, err = bundle("cart-2").Reserve(ctx)
	fmt.Println(err)
	_, err = bundle("cart-1").Confirm(ctx)
	fmt.Println(err)
	v, err := games.View(ctx)
	fmt.Println(v.Free, "games left", err)
	// Output:
	// <nil>
	// segmented: reserve "cart-2" of stock "consoles": sold out, 0 left
	// <nil>
	// 8 games left <nil>
}

// Buyers are told that their time is over, once each, also if a process dies in
// between: what is not acknowledged is listed again.
func ExampleStock_Expired() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	chairs, err := segmented.OpenStock(hf, "chairs", segmented.StockOptions{})
	if err != nil {
		panic(err)
	}
	if err := chairs.Init(ctx, 4); err != nil {
		panic(err)
	}
	if _, err := chairs.Reserve(ctx, segmented.Order{ID: "o1", Buyer: "ann", Qty: 1, Window: time.Millisecond}); err != nil {
		panic(err)
	}
	time.Sleep(10 * time.Millisecond)
	list, err := chairs.Expired(ctx, 100)
	if err != nil {
		panic(err)
	}
	for _, r := range list {
		fmt.Println("dear", r.Order.Buyer, "- your", r.Order.ID, "is", r.State)
		if err := chairs.Acknowledge(ctx, r.Order.ID); err != nil {
			panic(err)
		}
	}
	list, err = chairs.Expired(ctx, 100)
	fmt.Println(len(list), err)
	// Output:
	// dear ann - your o1 is expired
	// 0 <nil>
}

// The books are in a database; Redis is compared with them every night.
func ExampleStock_Reconcile() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	books, err := segmented.OpenStock(hf, "books", segmented.StockOptions{})
	if err != nil {
		panic(err)
	}
	if err := books.Init(ctx, 10); err != nil {
		panic(err)
	}
	for _, id := range []string{"o1", "o2"} {
		if _, err := books.Reserve(ctx, segmented.Order{ID: id, Qty: 1}); err != nil {
			panic(err)
		}
	}
	if _, err := books.Confirm(ctx, "o1"); err != nil {
		panic(err)
	}
	paid := map[string]bool{"o1": true, "o2": true} // by the database; the webhook for o2 was lost
	report, err := books.Reconcile(ctx, int64(len(paid)))
	fmt.Println("drift", report.Drift, "unaccounted", report.Unaccounted(), err)
	for r, err := range books.Orders(ctx) {
		if err != nil {
			panic(err)
		}
		if paid[r.Order.ID] && r.State == segmented.Reserved {
			r, err = books.Confirm(ctx, r.Order.ID)
			fmt.Println(r.Order.ID, r.State, err)
		}
	}
	// Output:
	// drift -1 unaccounted 0 <nil>
	// o2 sold <nil>
}
