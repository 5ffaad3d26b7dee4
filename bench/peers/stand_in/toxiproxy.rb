# Stands in for Toxiproxy: the bench is the proxy, and begins to delay once it is told.
require "socket"

class Toxiproxy
  def self.populate(*)
  end

  def self.[](_)
    new
  end

  def downstream(_, latency:)
    @latency = latency
    self
  end

  def apply
    TCPSocket.open("127.0.0.1", 6380) { |proxy| proxy.write("!#{@latency}\n") }
    yield
  end
end
