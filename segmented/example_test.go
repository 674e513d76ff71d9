package segmented_test

import (
	"context"
	"fmt"

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
