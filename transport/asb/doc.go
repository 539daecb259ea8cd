// Package asb connects endpoints to Azure Service Bus, over AMQP 1.0.
package asb
