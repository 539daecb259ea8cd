// Package servicecontrol reports a running endpoint to ServiceControl, so that ServicePulse shows
// it beside endpoints of NServiceBus.
//
// ServiceControl is a server program of Particular Software for systems of message endpoints. It
// reads the error and audit queues of such a system, and ServicePulse is its web page: people see
// failed messages there, and return them to their queues. For that an endpoint needs no code beyond
// its error queue. This package adds the reports by which ServiceControl knows the endpoint itself:
//   - heartbeats: the page Heartbeats lists the instances of the endpoint, and warns when one stops;
//   - custom checks: functions of the program whose failures the page Custom Checks shows;
//   - metrics: the page Monitoring shows throughput, processing time, critical time, retries and queue length.
//
// The reports are messages on the endpoint's own broker, to the queues of the ServiceControl error
// instance and of the Monitoring instance. Each part is on if its queue is named:
//
//	err := servicecontrol.Attach(&cfg, servicecontrol.Config{
//		HeartbeatQueue: "Particular.ServiceControl",
//		MetricsQueue:   "Particular.Monitoring",
//	})
//	ep, err := endpoint.New(cfg)
//	err = ep.Run(ctx)
//
// Reports have a connection of their own, and never delay or fail a message of the endpoint. A
// report that cannot be sent is logged: the first failure at once, later ones at most once a minute
// with their number. The times in reports are those of the machine's clock, which must agree with
// that of ServiceControl within some seconds.
//
// docs/servicecontrol.md lists what ServicePulse shows, and how to find the names of the queues.
package servicecontrol
