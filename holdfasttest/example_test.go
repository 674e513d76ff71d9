package holdfasttest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/reentrant"
)

// nightly is the code under test: one replica sends the invoices, and stops when
// it loses its lease.
func nightly(ctx context.Context, hf *holdfast.Session, send func(context.Context) error) error {
	lock, err := reentrant.New(hf, "invoices", holdfast.Options{Wait: -1})
	if err != nil {
		return err
	}
	return lock.Do(ctx, send)
}

// A real lock in a unit test: one line, and nothing to clean up.
func ExampleNew() {
	t := newTB() // in a test it is the test's own t
	defer t.end()

	hf := holdfasttest.New(t)
	err := nightly(context.Background(), hf, func(context.Context) error {
		fmt.Println("sent")
		return nil
	})
	fmt.Println(err)
	// Output:
	// sent
	// <nil>
}

// Somebody else holds the lock, and then it is free.
func ExampleServer_Take() {
	t := newTB()
	defer t.end()

	srv := holdfasttest.NewServer(t)
	hf := srv.Session()
	send := func(context.Context) error { return nil }

	release := srv.Take("invoices", time.Minute)
	fmt.Println(errors.Is(nightly(context.Background(), hf, send), holdfast.ErrNotAcquired))
	release()
	fmt.Println(nightly(context.Background(), hf, send))
	// Output:
	// true
	// <nil>
}

// The lease is lost in the middle of the work.
func ExampleServer_Lose() {
	t := newTB()
	defer t.end()

	srv := holdfasttest.NewServer(t)
	hf := srv.Session(holdfast.SessionOptions{Logger: slog.New(slog.DiscardHandler)})
	err := nightly(context.Background(), hf, func(ctx context.Context) error {
		srv.Lose("invoices")
		<-ctx.Done() // code that gets ctx stops here
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, holdfast.ErrLost))
	// Output: true
}

// Redis cannot be reached: that is not "somebody else does it".
func ExampleServer_Down() {
	t := newTB()
	defer t.end()

	srv := holdfasttest.NewServer(t)
	hf := srv.Session(holdfast.SessionOptions{Timeout: 50 * time.Millisecond})
	srv.Down()
	err := nightly(context.Background(), hf, func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, holdfast.ErrUnavailable), errors.Is(err, holdfast.ErrNotAcquired))
	// Output: true false
}

// Which of two processes has it.
func ExampleServer_Owner() {
	t := newTB()
	defer t.end()

	srv := holdfasttest.NewServer(t)
	blue := srv.Session(holdfast.SessionOptions{Label: "blue"})
	green := srv.Session(holdfast.SessionOptions{Label: "green"})
	_ = nightly(context.Background(), green, func(ctx context.Context) error {
		fmt.Println(srv.Owner("invoices")[:len("green")])
		return nightly(ctx, blue, nil) // not started: green has the lock
	})
	fmt.Printf("%q\n", srv.Owner("invoices"))
	// Output:
	// green
	// ""
}

// This is the example of the package's documentation: a worker for five minutes,
// and then for the half minute in which it loses its lease, in no time.
func TestExample_inABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := holdfasttest.NewServer(t)
		hf := srv.Session(holdfast.SessionOptions{Logger: slog.New(slog.DiscardHandler)})
		done := make(chan error)
		go func() {
			done <- nightly(t.Context(), hf, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()

		time.Sleep(5 * time.Minute) // it works, and its lease is renewed
		srv.Down()
		time.Sleep(30 * time.Second) // the default lease
		srv.Up()
		if err := <-done; !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the worker returned %v", err)
		}
	})
}
