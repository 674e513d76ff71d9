package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/reentrant"
)

// One function under one lock: the shortest way, and the one to start with.
func Example() {
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redisAddr}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	hf, err := holdfast.New(client, holdfast.SessionOptions{})
	if err != nil {
		panic(err)
	}
	defer hf.Close(ctx)

	reports, err := reentrant.New(hf, "reports", holdfast.Options{})
	if err != nil {
		panic(err)
	}
	err = reports.Do(ctx, func(ctx context.Context) error {
		fmt.Println("held:", reports.Held(ctx).Valid())
		return nil
	})
	fmt.Println(err)
	// Output:
	// held: true
	// <nil>
}

// A job that every replica starts and one of them runs: Wait is negative, so the
// others go home at once, and MinHold keeps the lock until all clocks agree that
// this turn is over.
func Example_cronJob() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	nightly, err := reentrant.New(hf, "nightly-invoice", holdfast.Options{
		Wait:    -1,
		MinHold: time.Minute,
	})
	if err != nil {
		panic(err)
	}
	for replica := 1; replica <= 3; replica++ {
		err := nightly.Do(ctx, func(context.Context) error {
			fmt.Printf("replica %d runs the job\n", replica)
			return nil
		})
		switch {
		case errors.Is(err, holdfast.ErrNotAcquired):
			fmt.Printf("replica %d: another one runs it\n", replica)
		case err != nil:
			fmt.Printf("replica %d: %v\n", replica, err) // an outage is never "another one runs it"
		}
	}
	// Output:
	// replica 1 runs the job
	// replica 2: another one runs it
	// replica 3: another one runs it
}

// A lock per order, through three layers that each take it: the inner ones
// re-enter, since they get the context of the outer one.
func Example_reentrance() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	orders, err := reentrant.New(hf, "orders", holdfast.Options{})
	if err != nil {
		panic(err)
	}
	charge := func(ctx context.Context, id string) error {
		return orders.For(id).Do(ctx, func(ctx context.Context) error {
			fmt.Println("charge: holds", orders.For(id).Held(ctx).Holds())
			return nil
		})
	}
	pay := func(ctx context.Context, id string) error {
		return orders.For(id).Do(ctx, func(ctx context.Context) error {
			fmt.Println("pay: holds", orders.For(id).Held(ctx).Holds())
			return charge(ctx, id)
		})
	}
	err = orders.For("4711").Do(ctx, func(ctx context.Context) error {
		fmt.Println("process: holds", orders.For("4711").Held(ctx).Holds())
		return pay(ctx, "4711")
	})
	fmt.Println(err)
	// Output:
	// process: holds 1
	// pay: holds 2
	// charge: holds 3
	// <nil>
}

// A worker that must stop when it loses its lease and when the process shuts
// down. The context it works under ends in both cases, and the cause says which.
func Example_worker() {
	hf := exampleSession()
	defer hf.Close(context.Background())

	leader, err := reentrant.New(hf, "leader", holdfast.Options{Lease: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	shutdown, stop := context.WithCancel(context.Background()) // signal.NotifyContext in a real program
	work := func(ctx context.Context) error {
		stop() // the signal arrives
		<-ctx.Done()
		switch {
		case errors.Is(context.Cause(ctx), holdfast.ErrLost):
			fmt.Println("lost the lease: stop at once")
		default:
			fmt.Println("shutting down: finish the batch, still leader:", leader.Held(ctx).Valid())
		}
		return nil
	}
	fmt.Println(leader.Do(shutdown, work))
	// Output:
	// shutting down: finish the batch, still leader: true
	// <nil>
}

// A write that the resource itself refuses when it comes from a holder that was
// overtaken: the token goes along, and Redis compares it in the same step.
func Example_fencedWrite() {
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redisAddr}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	hf, err := holdfast.New(client, holdfast.SessionOptions{})
	if err != nil {
		panic(err)
	}
	defer hf.Close(ctx)

	account, err := reentrant.New(hf, "account:42", holdfast.Options{Fencing: true})
	if err != nil {
		panic(err)
	}
	_, old, err := account.Lock(ctx)
	if err != nil {
		panic(err)
	}
	_, _ = account.ForceUnlock(ctx) // or: the process stood still for longer than its lease
	err = account.Do(holdfast.WithoutLeases(ctx), func(ctx context.Context) error {
		return fence.Set(ctx, client, "balance:42", account.Held(ctx).Token(), "100")
	})
	fmt.Println("new holder:", err)

	err = fence.Set(ctx, client, "balance:42", old.Token(), "0")
	fmt.Println("old holder refused:", errors.Is(err, fence.ErrStaleToken))
	// Output:
	// new holder: <nil>
	// old holder refused: true
}

// Two different locks, one inside the other. Take them in one order everywhere.
func Example_twoLocks() {
	ctx := context.Background()
	hf := exampleSession()
	defer hf.Close(ctx)

	accounts, err := reentrant.New(hf, "accounts", holdfast.Options{})
	if err != nil {
		panic(err)
	}
	transfer := func(ctx context.Context, from, to string) error {
		first, second := min(from, to), max(from, to)
		return accounts.For(first).Do(ctx, func(ctx context.Context) error {
			return accounts.For(second).Do(ctx, func(ctx context.Context) error {
				fmt.Println("both held:", accounts.For(from).Held(ctx).Valid(), accounts.For(to).Held(ctx).Valid())
				return nil
			})
		})
	}
	fmt.Println(transfer(ctx, "ann", "bob"))
	// Output:
	// both held: true true
	// <nil>
}

// importer is written against the interface, so its test needs no Redis.
type importer struct{ lock holdfast.Locker }

func (i importer) run(ctx context.Context) (string, error) {
	result := "imported"
	err := i.lock.Do(ctx, func(context.Context) error { return nil })
	if errors.Is(err, holdfast.ErrNotAcquired) {
		return "somebody else imports", nil
	}
	return result, err
}

// taken is a fake lock that another process always holds.
type taken struct{ holdfast.Locker }

func (taken) Do(context.Context, func(context.Context) error) error { return holdfast.ErrNotAcquired }

// A function under test against the interface of all locks.
func Example_fakeLocker() {
	fmt.Println(importer{lock: taken{}}.run(context.Background()))
	// Output: somebody else imports <nil>
}
