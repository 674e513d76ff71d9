// Package pubsub shares pub/sub subscriptions between all the local waiters of a
// process. The script that releases a lock publishes on a channel; a waiter
// sleeps until the message comes. However many wait for however many locks, a
// [Hub] sends one SUBSCRIBE per channel and keeps one connection, or one to each
// node that is needed for sharded channels of a cluster.
//
// The package is importable for those who build locks of their own, without a
// promise of compatibility.
//
// # No wake-up is lost
//
// Pub/sub keeps nothing: what is published while nobody listens is gone. So
// after every confirmation of a subscription, the first as well as those after a
// lost connection, every subscriber of the channel gets a [Look]: it must look
// at its lock again, for the release may have come before the server listened on
// its behalf. While a channel is not confirmed its subscribers get a Look about
// every [Options.Poll] instead. That is the degraded mode, which needs nothing
// of the server: waiting is slower then, and not wrong.
//
// # States
//
// A channel is wanted from its first subscriber until it had none for
// [Options.Linger]. In each family that is in use it has a leg, which is
//
//   - absent: the server was not told of it, refused it, dropped it, or the
//     connection is lost;
//   - sent: a SUBSCRIBE is about to be sent or on its way;
//   - confirmed: the server said so, on the connection that is in use now;
//   - leaving: an UNSUBSCRIBE is about to be sent or on its way.
//
// Only the goroutine of its connection moves a leg from absent to sent and from
// confirmed to leaving, and it has one batch of commands under way at a time.
// Hence a channel that is wanted again while it is leaving becomes absent first,
// and is then subscribed anew. A confirmation or message counts only if the
// connection it came on is still the one in use.
//
// # Goroutines
//
// There is one goroutine for each connection. It ends, and the connection is
// closed, when the connection had no channel for [Options.Linger], or with
// [Hub.Close]. A goroutine asks for the family as long as that is not known and
// there are channels; short-lived ones run a command or a timer. There is one
// timer for the hub and none for a channel or a subscriber, and an idle hub has
// neither goroutine nor connection.
//
// A connection comes from [rueidis.Client.Dedicate], that is from the client's
// pool for blocking commands: scripts never share it.
//
// [rueidis.Client.Dedicate]: https://pkg.go.dev/github.com/redis/rueidis#Client
package pubsub
