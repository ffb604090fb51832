"""What asynchronous training and lazy rows cost in quality, on real data.

__main__.py    trains every setting in turns and prints the tables
packages.py    fetches data that comes inside of a package
problem.py     a data set, a model of it, and how good its answers are
scores.py      what an answer is worth: AUC, RMSE, recall
movielens.py   100,000 ratings of films: how many stars, and which films
census.py      300,000 people of the US census: who earns over 50,000 dollars?
flights.py     330,000 flights from New York: which arrive late?
tabular.py     the wide and deep model of the last two
training.py    one training with one setting
tables.py      figures of many trainings
"""
