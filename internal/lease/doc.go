// Package lease is the core of every lock kind: who of this process waits for a
// lock and in which order, who holds it, until when, and what is to be done when
// time has passed. It knows neither Redis nor Lua; a [Store] asks and answers for
// it, so all of it can be tested on a fake clock.
//
// # Parts
//
//   - A [Keeper] belongs to one session. Its one mutex guards everything below, and
//     is never held while a store, a context or a callback is called.
//   - A queue belongs to one lock name: its waiters, first come, first served. Only
//     the head asks the store, and not while this process itself holds the lock.
//   - A [Tenure] is the stay of one owner field in the store. It is what gets
//     renewed, and it has the deadline.
//   - A [Hold] is one local owner of a tenure. A tenure that is handed over to
//     another goroutine has one hold after the other, so that a hold that was
//     released or lost can never act for the next.
//   - A [Member] is one lease of a hold: the root or a nested one.
//
// # Life of a hold
//
//	          Acquire                      Unlock of the last member
//	waiting ----------> held <--> unsure ---------------------------> released
//	                      |  renewals fail, |
//	                      |  then succeed   |
//	                      +--------+--------+
//	                               | deadline, "not yours", MaxHold, Grace, Close
//	                               v
//	                              lost
//
// Goroutines: one for each command that is under way, which ends with it. There
// is one timer, and no goroutine or timer for a lock that is merely held.
package lease
