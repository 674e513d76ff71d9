// Package holdfasttest is for the unit tests of code that takes locks: real
// sessions and locks on a server inside the test, with no port, no process and
// nothing to clean up. [New] is enough for most tests:
//
//	func TestImport(t *testing.T) {
//		hf := holdfasttest.New(t)
//		err := imports.Run(t.Context(), hf)
//		…
//	}
//
// What is to happen to the locks is said to a [Server]:
//
//	srv := holdfasttest.NewServer(t)
//	hf, other := srv.Session(), srv.Session() // two processes
//
//	srv.Take("orders", time.Minute) // somebody else holds it, and crashes
//	srv.Lose("orders")              // whoever holds it loses it, and is told at once
//	srv.Expire("orders")            // the lease ends, and the holder learns of it at its next renewal
//	srv.Down()                      // connections are cut, and refused until srv.Up()
//	srv.Down(hf)                    // the same for one process: the other gets the lock
//	srv.Hang()                      // nothing answers until srv.Up()
//	srv.Owner("orders")             // who holds it
//
// # In a bubble
//
// Everything also runs inside [testing/synctest.Test], on its clock. Half a
// minute of lease passes in no time, and a timing is exact and never flaky:
//
//	func TestTheWorkerStopsWhenItsLeaseIsLost(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			srv := holdfasttest.NewServer(t)
//			hf := srv.Session()
//			done := make(chan error)
//			go func() { done <- runWorker(t.Context(), hf) }()
//
//			time.Sleep(5 * time.Minute) // it works, and its lease is renewed
//			srv.Down()
//			time.Sleep(30 * time.Second) // the default lease
//			srv.Up()
//			if err := <-done; !errors.Is(err, holdfast.ErrLost) {
//				t.Errorf("the worker returned %v", err)
//			}
//		})
//	}
//
// Make the server inside the bubble, with the bubble's t. [testing/synctest.Wait]
// returns when all that can happen has happened: after it, every waiter waits and
// every context that is to end has ended.
//
// Outside a bubble give locks a short [holdfast.Options.Lease], such as 100 ms,
// where the test waits for a lease to end.
//
// # What it is not
//
// The server is [miniredis], not Redis. Its scripts and its pub/sub are close
// enough for the locks. It has no cluster and no sharded pub/sub
// ([holdfast.SessionOptions.Family] is ignored), no replicas (with
// [holdfast.Options.Replicas] no lock is ever granted), no rights and no memory
// limit. Test those, and how fast things are, on a real server.
//
// To test a function without any lock behind it, write it against
// [holdfast.Locker] and put a fake there.
//
// [miniredis]: https://pkg.go.dev/github.com/alicebob/miniredis/v2
package holdfasttest
