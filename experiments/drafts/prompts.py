"""
Write the prompts whose answers draft heads learn from, one per line: every subject with every request for its kind.

    python experiments/drafts/prompts.py > prompts.txt

The questions that the heads are judged on, `questions.txt` beside this file, are of another kind: written one by one,
about everyday life. None of them is a request of this list.
"""

import random

# By kind: the subjects, and the requests, with {} for the subject.
KINDS = {
    "nature": (
        "photosynthesis, earthquakes, volcanoes, the water cycle, black holes, gravity, magnetism, evolution, "
        "the human heart, the immune system, DNA, vaccines, antibiotics, sleep, the brain, atoms, electricity, light, "
        "sound, rainbows, tides, hurricanes, glaciers, deserts, rainforests, coral reefs, the Moon, Mars, the Sun, "
        "comets, dinosaurs, fossils, bacteria, viruses, mushrooms, soil, oceans, lightning, the ozone layer, acids, "
        "metals, crystals, friction, heat, energy, nuclear fusion, the carbon cycle, food chains, seeds, migration",
        "Explain {} to a ten-year-old child.|What is known about {}?|Give five facts about {}.|"
        "Why does {} matter to people?|Write a short essay about {}.|What are common misunderstandings about {}?|"
        "How do scientists study {}?|Write three quiz questions about {} with their answers.|"
        "Describe {} in two paragraphs for a school book.|How is {} connected with the climate?",
    ),
    "animals": (
        "cats, dogs, horses, elephants, whales, dolphins, bees, ants, spiders, snakes, owls, eagles, penguins, bears, "
        "wolves, foxes, lions, tigers, monkeys, frogs, turtles, sharks, salmon, butterflies, bats, rabbits, cows, "
        "chickens, pigeons, crows, octopuses, kangaroos, camels, giraffes, hedgehogs, squirrels",
        "Where do {} live, and what do they eat?|How do {} communicate with each other?|"
        "Write a short story for children about {}.|What is special about {}?|"
        "How do {} take care of their young?|Write a poem about {}.|What dangers do {} face today?|"
        "Describe a day in the life of {}.|Compare {} with humans.",
    ),
    "history": (
        "ancient Egypt, the Roman Empire, ancient Greece, the Middle Ages, the Renaissance, the printing press, "
        "the French Revolution, the Industrial Revolution, the American Civil War, the First World War, "
        "the Second World War, the Cold War, the Silk Road, the Vikings, the Ottoman Empire, the Mongol Empire, "
        "the Inca Empire, colonialism, the abolition of slavery, women's suffrage, the space race, "
        "the fall of the Berlin Wall, the Great Depression, the plague, the discovery of America, the Crusades, "
        "the invention of writing, the history of medicine, the history of trade, the Russian Revolution",
        "Summarize the history of {}.|What were the causes and the effects of {}?|Who were the key people of {}?|"
        "What can we learn from {} today?|Write a timeline of {}.|How did {} change everyday life?|"
        "Write a letter by somebody who lived at the time of {}.|Discuss {} in a short speech.",
    ),
    "places": (
        "France, Italy, Japan, China, India, Brazil, Mexico, Canada, Egypt, Kenya, South Africa, Australia, Germany, "
        "Spain, Sweden, Russia, Turkey, Greece, Peru, Argentina, London, Paris, New York, Tokyo, Rome, Berlin, Cairo, "
        "Sydney, Istanbul, Mumbai, the Alps, the Himalayas, the Sahara, the Amazon, the Mediterranean Sea, Iceland",
        "What is {} famous for?|Plan a trip of three days to {}.|Describe the weather and the nature of {}.|"
        "Describe the food and the customs of {}.|Write a postcard from {}.|Give an overview of the economy of {}.|"
        "What should a visitor of {} know?|Describe {} for a travel guide.|Tell a legend set in {}.",
    ),
    "technology": (
        "computers, the internet, smartphones, electric cars, solar panels, wind turbines, batteries, robots, "
        "artificial intelligence, machine learning, neural networks, databases, operating systems, encryption, "
        "programming languages, search engines, social media, video games, satellites, GPS, 3D printing, airplanes, "
        "trains, bridges, refrigerators, microscopes, cameras, radios, lasers, drones, cloud computing, spreadsheets, "
        "compilers, open-source software, web browsers, virtual reality",
        "How do {} work?|What are the advantages and disadvantages of {}?|How have {} changed over time?|"
        "How will {} look in fifty years?|Explain {} with a comparison from everyday life.|"
        "What problems can {} cause?|Write an introduction to {} for beginners.|List the main parts of {}.|"
        "Who uses {}, and for what?|Write a news article about {}.",
    ),
    "society": (
        "democracy, taxes, inflation, education, public transport, health insurance, immigration, poverty, marriage, "
        "friendship, leadership, advertising, tourism, recycling, fashion, sports, religion, music, philosophy, "
        "psychology, journalism, law, human rights, globalization, trade unions, elections, museums, libraries, "
        "volunteering, remote work, homework, parenting, ageing, city life, farming, banks, money, justice",
        "What is the purpose of {}?|Discuss the pros and cons of {}.|Why is {} important?|"
        "How does {} differ between countries?|Write a dialogue between two people who disagree about {}.|"
        "What would the world be like without {}?|Give advice to somebody who struggles with {}.|"
        "Write the outline of a talk about {}.|How can {} be improved?|Define {} and give an example.",
    ),
    "skills": (
        "bake bread, play the guitar, learn a language, write a novel, run a marathon, save money, plan a wedding, "
        "grow tomatoes, paint a portrait, take good photographs, give a speech, write a resume, start a business, "
        "train a puppy, build a bookshelf, knit a scarf, play chess, swim, ride a bicycle, meditate, make friends, "
        "manage time, read faster, cook rice, brew coffee, change a tire, sew a button, juggle, draw faces, "
        "write a poem, dance, fish, camp in the forest, teach mathematics, lead a team, sell a house",
        "Give me step by step instructions to {}.|What mistakes do people make when they {}?|"
        "Which tools and materials do I need to {}?|How long does it take to learn to {}?|"
        "Write an encouraging message to somebody who wants to {}.|What are five tips to {}?|"
        "Tell a funny story about somebody who tries to {}.|Why would anyone want to {}?",
    ),
    "stories": (
        "a lost key, an old lighthouse, a talking tree, a brave mouse, a broken clock, a secret door, a long winter, "
        "two brothers, a stolen painting, a magic mirror, the last train, an empty house, a strange letter, a dragon, "
        "a robot with feelings, a lonely king, a hidden treasure, a storm at sea, a new neighbour, a birthday party, "
        "a detective, a wise grandmother, a missing cat, the first snow, a journey to the stars, a village festival, "
        "a kind thief, a race, a promise, a dream",
        "Write a short story about {}.|Write a fairy tale about {} that begins with 'Once upon a time'.|"
        "Write a poem of three verses about {}.|Write the first paragraph of a novel about {}.|"
        "Write a dialogue in a story about {}.|Write a scary story about {}.|Write a song about {}.|"
        "Describe a picture of {}.|Write the plot of a film about {}.",
    ),
    "work": (
        "a meeting that was moved, a late delivery, a job interview, a holiday, a new product, a broken computer, "
        "a pay rise, a complaint, a thank-you, an apology, a conference, a training course, a project plan, a budget, "
        "a new colleague, a farewell, a survey, a mistake in an invoice, an invitation, a reminder, a reference, "
        "a contract, a weekly report, an office move, a customer's question",
        "Write a polite email about {}.|Write a short message to my team about {}.|Draft a formal letter about {}.|"
        "What should I think of before I write about {}?|Write a phone conversation about {}.|"
        "Make a checklist for {}.|How do I talk to my manager about {}?",
    ),
    "code": (
        "sorts a list of numbers, reverses a string, counts the words of a text, finds the largest number, "
        "checks whether a number is prime, computes a factorial, prints the Fibonacci numbers, reads a file, "
        "removes duplicates from a list, converts temperatures, draws a triangle of stars, merges two dictionaries, "
        "finds the average of a list, checks for palindromes, generates a password, plays rock, paper and scissors, "
        "counts vowels, searches a sorted list, adds two matrices, parses a date",
        "Write a Python function that {}.|Write a JavaScript function that {}.|"
        "Explain step by step how a program {}.|Write a test for a function that {}.|Write pseudocode that {}.",
    ),
    "mathematics": (
        "fractions, percentages, prime numbers, triangles, circles, averages, probability, equations, decimals, "
        "angles, negative numbers, square roots, graphs, units of length, interest on savings, speed and distance, "
        "volumes, ratios, sets, sequences",
        "Explain {} with an example.|Make up a word problem about {} and solve it.|What are {} used for?|"
        "Give three exercises on {} for pupils.|How would you teach {}?|What rules must I know about {}?",
    ),
}


def main() -> None:
    prompts = [
        request.format(subject)
        for subjects, requests in KINDS.values()
        for subject in " ".join(subjects.split()).split(", ")
        for request in requests.split("|")
    ]
    random.Random(0).shuffle(prompts)
    print("\n".join(prompts))


if __name__ == "__main__":
    main()
