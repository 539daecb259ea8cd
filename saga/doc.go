// Package saga has long-running processes: an order that waits for its payment for three days, say,
// and is then cancelled.
//
// A [Saga] is a set of steps. Each step is a function for the messages of one type, and all steps
// of an instance share a state, which is stored in the database of the endpoint. The key that a
// message has, such as the id of the order, identifies the instance. The state, the messages that a
// step sends, and its time-outs are committed together with the fact that the message was handled:
// each message changes an instance once, however many processes run the endpoint.
//
// Messages for one instance are handled one after the other, and messages for different instances
// side by side.
package saga
