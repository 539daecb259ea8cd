// Package holdfast is the root of a message-endpoint framework and has no code of its own.
//
// Programs start at package endpoint: a Config in, a running endpoint out. The drivers
// are below transport; package inmemory is the one for tests.
package holdfast
