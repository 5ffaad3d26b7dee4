# Sidekiq: push_bulk of 1,000 with an array of times; hiredis; 5 threads; polls every 0.1 s.
#
#   ruby sidekiq.rb produce PORT TASKS DUE SPAN
#   ruby sidekiq.rb work PORT TASKS
require 'json'
require 'redis'
begin
  require 'hiredis'
  DRIVER = :hiredis
rescue LoadError
  DRIVER = :ruby
end
require 'sidekiq'

ROLE, PORT, TASKS, DUE, SPAN = ARGV[0], *ARGV[1..].map(&:to_i)
SETTINGS = { url: "redis://127.0.0.1:#{PORT}/0", driver: DRIVER }.freeze

def clock
  Process.clock_gettime(Process::CLOCK_REALTIME, :float_millisecond)
end

# Notes starts and ends of all threads.
module Count
  LAGS = []
  LOCK = Mutex.new
  @first = nil
  @count = 0

  def self.entered(due)
    at = clock
    LOCK.synchronize do
      @first ||= at
      LAGS << at - due if due.positive?
      @count += 1
      finish if @count == TASKS
    end
  end

  def self.finish
    last = clock
    lags = LAGS.sort
    at = ->(share) { lags.empty? ? nil : lags[((lags.size - 1) * share).floor] }
    puts JSON.generate(ms: last - @first, first: @first, last: last, early: lags.count(&:negative?),
                       min: at.(0), p50: at.(0.5), p99: at.(0.99), max: at.(1))
    $stdout.flush
    Thread.new { sleep 0.2; exit! 0 }
  end
end

class Bench
  include Sidekiq::Worker
  sidekiq_options retry: false

  def perform(due, _pad)
    Count.entered(due)
  end
end

Sidekiq.logger.level = Logger::ERROR
if ROLE == 'produce'
  Sidekiq.configure_client { |config| config.redis = SETTINGS }
  start = clock
  (0...TASKS).each_slice(1000) do |rows|
    dues = rows.map { |n| DUE.zero? ? 0 : DUE + n * SPAN / TASKS }
    call = { 'class' => Bench, 'args' => dues.map { |due| [due, 'x' * 80] } }
    call['at'] = dues.map { |due| due / 1000.0 } unless DUE.zero?
    Sidekiq::Client.push_bulk(call)
  end
  puts JSON.generate(ms: clock - start)
else
  require 'sidekiq/cli'
  require 'sidekiq/launcher'
  Sidekiq.configure_server do |config|
    config.redis = SETTINGS
    config[:poll_interval_average] = 0.1 if config.respond_to?(:[]=)
    config.options[:poll_interval_average] = 0.1 if config.respond_to?(:options)
  end
  Sidekiq.logger.level = Logger::ERROR
  options = Sidekiq.respond_to?(:options) ? Sidekiq.options : {}
  options = options.merge(concurrency: 5, queues: ['default'], poll_interval_average: 0.1, average_scheduled_poll_interval: 0.1,
                          timeout: 5, labels: [], environment: 'bench')
  Sidekiq.options = options if Sidekiq.respond_to?(:options=)
  Sidekiq::Launcher.new(options).run
  puts 'ready'
  $stdout.flush
  sleep
end
