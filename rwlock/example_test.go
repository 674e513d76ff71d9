package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/rwlock"
)

func Example() {
	hf := exampleSession()
	defer hf.Close(context.Background())
	prices, err := rwlock.New(hf, "example:prices", rwlock.Options{}) // once, at start
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	err = prices.Reader().Do(ctx, func(ctx context.Context) error {
		fmt.Println("many may read")
		return nil
	})
	fmt.Println(err)
	err = prices.Writer().Do(ctx, func(ctx context.Context) error {
		fmt.Println("one writes")
		return nil
	})
	fmt.Println(err)
	// Output:
	// many may read
	// <nil>
	// one writes
	// <nil>
}

// A cache that all processes share is filled by whoever misses first: the others wait,
// and find it filled. The token goes with what is written, so that a process that stood
// still cannot write an older value over a newer one; see package fence.
func ExampleLock_cacheRefresh() {
	hf := exampleSession()
	defer hf.Close(context.Background())
	caches, err := rwlock.New(hf, "example:cache", rwlock.Options{Options: holdfast.Options{Fencing: true}})
	if err != nil {
		panic(err)
	}
	cache := caches.For("eu")

	var shared struct { // in truth in Redis, or in a database
		value string
		token uint64
	}
	refreshed := 0
	get := func(ctx context.Context) (value string, err error) {
		err = cache.Reader().Do(ctx, func(context.Context) error {
			value = shared.value
			return nil
		})
		if err != nil || value != "" {
			return value, err
		}
		// A reader cannot become a writer, so another one may have been first: look again.
		ctx, lease, err := cache.Writer().Lock(ctx)
		if err != nil {
			return "", err
		}
		defer lease.Unlock(ctx)
		if shared.value == "" {
			shared.value, shared.token = "42 EUR", lease.Token()
			refreshed++
		}
		return shared.value, nil
	}

	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if value, err := get(context.Background()); err != nil || value != "42 EUR" {
				fmt.Println(value, err)
			}
		})
	}
	wg.Wait()
	fmt.Println("refreshed", refreshed, "time, with a token:", shared.token > 0)
	// Output: refreshed 1 time, with a token: true
}

// Configuration is reloaded by one process, which then checks what it wrote while others
// read it already, and nobody can write in between.
func ExampleWriter_Downgrade() {
	hf := exampleSession()
	defer hf.Close(context.Background())
	config, err := rwlock.New(hf, "example:config", rwlock.Options{})
	if err != nil {
		panic(err)
	}

	reload := func(ctx context.Context) error {
		held, writing, err := config.Writer().Lock(ctx)
		if err != nil {
			return err
		}
		defer writing.Unlock(ctx) // after the downgrade it does nothing
		_ = held                  // what writes gets this context
		fmt.Println("written")

		held, reading, err := config.Writer().Downgrade(ctx, writing)
		if err != nil {
			return err
		}
		defer reading.Unlock(ctx)
		// Another process reads beside us, and cannot write.
		if _, lease, err := config.Reader().TryLock(ctx); err == nil {
			fmt.Println("others read")
			defer lease.Unlock(ctx)
		}
		if _, _, err := config.Writer().TryLock(ctx); errors.Is(err, holdfast.ErrNotAcquired) {
			fmt.Println("nobody writes")
		}
		return held.Err()
	}
	fmt.Println(reload(context.Background()))
	// Output:
	// written
	// others read
	// nobody writes
	// <nil>
}

// Whoever reads cannot begin to write: two that did so would wait for each other.
func ExampleWriter_Lock_upgrade() {
	hf := exampleSession()
	defer hf.Close(context.Background())
	l, err := rwlock.New(hf, "example:upgrade", rwlock.Options{})
	if err != nil {
		panic(err)
	}
	err = l.Reader().Do(context.Background(), func(ctx context.Context) error {
		return l.Writer().Do(ctx, func(context.Context) error { return nil })
	})
	fmt.Println(errors.Is(err, rwlock.ErrUpgrade))
	// Output: true
}
